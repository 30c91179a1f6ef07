// A text classifier: token numbers -> Embedding -> bidirectional LSTM -> one vector per text ->
// Linear. The weights are random here; the point is how the parts fit.
#include <algorithm>
#include <cstdio>
#include <packrnn/packrnn.hpp>
#include <utility>
#include <vector>

namespace {

using namespace packrnn;

class Classifier {
 public:
  // [forward]
  // One row of scores [N, 3] per text, in the caller's order, however the batch was sorted inside.
  Tensor scores(Context& context, const PackedSequence& tokens) const {
    const PackedSequence words = embedding_.forward(context, tokens);
    // With the batch in front, one row of h holds the final states of both directions: forward's
    // after the last word, reverse's after the first.
    auto [output, state] = lstm_.forward(context, words, {.state_batch_first = true});
    const Tensor last = std::move(state.h).reshape({tokens.layout().batch(), 2 * kHidden});
    return head_.forward(context, last);
  }

  // The other usual choice: the mean over a text's own words. Padding does not exist here, so
  // there is nothing to mask.
  Tensor mean_scores(Context& context, const PackedSequence& tokens) const {
    const PackedSequence words = embedding_.forward(context, tokens);
    const PackedSequence output = lstm_.forward(context, words).output;
    return head_.forward(context, mean_sequences(context, output));
  }
  // [/forward]

 private:
  static constexpr std::int64_t kHidden = 24;
  Embedding embedding_{{.num_embeddings = 100, .embedding_dim = 16}};
  Lstm lstm_{{.input_size = 16, .hidden_size = kHidden, .bidirectional = true}};
  Linear head_{{.in_features = 2 * kHidden, .out_features = 3}};
};

PackedSequence pack(Context& context, const std::vector<std::vector<std::int64_t>>& texts) {
  std::vector<Tensor> tensors;
  for (const auto& text : texts)
    tensors.push_back(
        context.to_device(TensorView(text.data(), Shape{static_cast<std::int64_t>(text.size())})));
  const std::vector<TensorView> views(tensors.begin(), tensors.end());
  return pack_sequence(context, views);
}

}  // namespace

int main() {
  Context context;
  const Classifier model;
  const std::vector<std::vector<std::int64_t>> texts = {
      {17, 4, 99}, {8, 8, 31, 2, 60, 75, 1}, {42}, {5, 77, 23, 9}};

  const Tensor together = context.to_host(model.scores(context, pack(context, texts)));
  const Tensor means = context.to_host(model.mean_scores(context, pack(context, texts)));
  bool same = true;
  for (std::size_t n = 0; n < texts.size(); ++n) {
    const auto row = together.values<float>().subspan(n * 3, 3);
    const auto mean = means.values<float>().subspan(n * 3, 3);
    std::printf("%zu words: last %7.4f %7.4f %7.4f   mean %7.4f %7.4f %7.4f\n", texts[n].size(),
                row[0], row[1], row[2], mean[0], mean[1], mean[2]);
    // A text's scores do not depend on its companions, to the last bit.
    const Tensor alone = context.to_host(model.scores(context, pack(context, {texts[n]})));
    same = same && std::ranges::equal(row, alone.values<float>());
  }
  std::printf("each text alone: %s\n", same ? "the same bits" : "OTHER BITS");
  return same ? 0 : 1;
}
