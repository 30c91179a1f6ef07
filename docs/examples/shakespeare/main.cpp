// A character language model on tiny Shakespeare: an LSTM reads the plays as some long streams, a
// chunk at a time. Its state goes from chunk to chunk, gradients stop at the seams (truncated
// back-propagation through time). At the end it writes some text of its own.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <packrnn/packrnn.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/program.hpp"
#include "docs/examples/shakespeare/text.hpp"
#include "docs/examples/training/session.hpp"

namespace {

using namespace packrnn;
using shakespeare::Text;

struct Options : training::Options {
  std::int64_t updates = 4900, hidden = 256, embedding = 64, batch = 32, chunk = 64;
  std::int64_t report_every = 245, sample = 600;
  double rate = 4e-3, dropout = 0.1, temperature = 0.8, most = 0.0;
};

class Model {
 public:
  Model(const Options& o, std::int64_t characters)
      : dropout_(o.dropout),
        embedding_({.num_embeddings = characters,
                    .embedding_dim = o.embedding,
                    .seed = static_cast<std::uint64_t>(o.seed) * 1000}),
        lstm_({.input_size = o.embedding,
               .hidden_size = o.hidden,
               .seed = static_cast<std::uint64_t>(o.seed) * 1000 + 1}),
        head_({.in_features = o.hidden,
               .out_features = characters,
               .seed = static_cast<std::uint64_t>(o.seed) * 1000 + 2}) {
    set_forget_bias(lstm_, 1.0);
  }

  struct Result {
    PackedVariable scores;  // [total, V] of the next character
    StateVariable state;
  };

  // [model]
  Result forward(Tape& tape, const PackedSequence& characters, const StateVariable& state) {
    const PackedVariable x = dropout(tape, embedding_.forward(tape, characters), dropout_);
    const PackedOutputVariable y = lstm_.forward(tape, x, state);
    return {head_.forward(tape, dropout(tape, y.output, dropout_)), y.state.detach()};
  }
  // [/model]

  /// One step of one stream, without a tape: scores [1, V], and the state it was given moves on.
  Tensor step(Context& context, std::int64_t character, State& state) const {
    const Tensor index = context.to_device(Tensor::from<std::int64_t>({character}, {1, 1}));
    DenseOutput y = lstm_.forward(context, embedding_.forward(context, index), {.state = state});
    state = std::move(y.state);
    return head_.forward(context, y.output);
  }

  std::vector<TrainingRun::Model> parts() {
    return {{"embedding.", &embedding_.parameters()},
            {"lstm.", &lstm_.parameters()},
            {"head.", &head_.parameters()}};
  }

 private:
  double dropout_;
  Embedding embedding_;
  Lstm lstm_;
  Linear head_;
};

/// The text as B streams that begin at equal distances and never end: behind the last character is
/// the first.
class Streams {
 public:
  Streams(std::span<const std::int64_t> text, std::int64_t batch, std::int64_t chunk)
      : text_(text),
        batch_(batch),
        layout_(
            PackedLayout::make(std::vector<std::int64_t>(static_cast<std::size_t>(batch), chunk))) {
  }

  /// The chunk that starts `shift` characters after the first character of the update-th one.
  PackedSequence chunk(Context& context, std::int64_t update, std::int64_t shift) const {
    const auto size = static_cast<std::int64_t>(text_.size());
    Tensor characters = Tensor::empty({layout_->total()}, Dtype::i64);
    const auto rows = characters.values<std::int64_t>();
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t t = 0; t < layout_->steps(); ++t) {
        const std::int64_t at = size / batch_ * b + layout_->steps() * update + t + shift;
        rows[static_cast<std::size_t>(layout_->row(b, t))] =
            text_[static_cast<std::size_t>(at % size)];
      }
    return {context.to_device(characters), layout_};
  }

 private:
  std::span<const std::int64_t> text_;
  std::int64_t batch_;
  PackedLayoutPtr layout_;
};

/// Mean loss of every character but the first, each predicted from all before it.
double held_out_loss(Context& context, Model& model, std::span<const std::int64_t> text) {
  constexpr std::int64_t kChunk = 1000;  // for the memory only
  const auto count = static_cast<std::int64_t>(text.size()) - 1;
  const Streams stream(text, 1, kChunk);
  StateVariable state;
  double sum = 0.0;
  for (std::int64_t at = 0; at < count; at += kChunk) {
    const std::int64_t steps = std::min(kChunk, count - at);
    const PackedLayoutPtr layout = PackedLayout::make({steps});
    const auto part = [&](std::int64_t begin) {
      const auto values =
          text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(steps));
      return PackedSequence(context.to_device(Tensor::from(values, {steps})), layout);
    };
    Tape tape(context, {.training = false});
    auto [scores, next] = model.forward(tape, part(at), state);
    state = std::move(next);
    const Variable loss =
        cross_entropy(tape, scores, part(at + 1), {.reduction = LossReduction::sum});
    sum += context.to_host(loss.value()).values<float>()[0];
  }
  return sum / static_cast<double>(count);
}

/// Characters drawn one by one from what the model expects after `begin`.
std::string write(Context& context, const Model& model, const shakespeare::Alphabet& alphabet,
                  const std::string& begin, const Options& options) {
  std::string text = begin;
  Generator random(static_cast<std::uint64_t>(options.seed));
  Tensor dice = Tensor::empty({options.sample}, Dtype::f64);
  fill_uniform(random, dice, 0.0, 1.0);
  State state;
  Tensor scores;
  for (const std::int64_t c : alphabet.numbers(begin)) scores = model.step(context, c, state);
  for (const double die : dice.values<double>()) {
    const Tensor here = context.to_host(scores);
    std::vector<double> sums;  // of the probabilities up to a character, not normalised
    for (const float score : here.values<float>())
      sums.push_back((sums.empty() ? 0.0 : sums.back()) + std::exp(score / options.temperature));
    const auto drawn = std::ranges::upper_bound(sums, die * sums.back()) - sums.begin();
    const std::int64_t c = std::min<std::int64_t>(drawn, alphabet.size() - 1);
    text += alphabet.character(c);
    scores = model.step(context, c, state);
  }
  return text;
}

/// The carried state [1, B, H] as parameters, which a checkpoint keeps.
Parameters carried(const Options& o) {
  return Parameters({{"h", {1, o.batch, o.hidden}}, {"c", {1, o.batch, o.hidden}}}, Dtype::f32);
}

/// The loss on what is held out, or nothing when it was stopped.
std::optional<double> train(Context& context, const Options& options, const Text& text,
                            Model& model, training::Session& session) {
  TrainingRun run{
      .models = model.parts(), .generator = &context.random(), .integers = {{"update", 0}}};
  std::vector<Parameters*> parameters;
  for (const TrainingRun::Model& part : run.models) parameters.push_back(part.parameters);
  Adam adam(parameters, {.learning_rate = options.rate});
  run.optimizer = &adam;
  Parameters kept = carried(options);
  run.models.push_back({"carried.", &kept});
  session.resume(run);

  const std::int64_t warm = std::min<std::int64_t>(100, options.updates / 2);
  const Schedule schedule =
      warm_up(std::max<std::int64_t>(warm, 1),
              cosine_schedule(options.rate, std::max<std::int64_t>(options.updates - warm, 1)));
  const Streams streams(text.train, options.batch, options.chunk);
  std::int64_t& update = run.integers["update"];
  StateVariable state{Variable(std::make_shared<const Tensor>(context.to_device(kept.value("h")))),
                      Variable(std::make_shared<const Tensor>(context.to_device(kept.value("c"))))};
  double loss_sum = 0.0,
         held_out = session.curve().rows().empty() ? 0.0 : session.curve().rows().back().back();
  while (update < options.updates && !session.stopped()) {
    const PackedSequence characters = streams.chunk(context, update, 0);
    const PackedSequence next = streams.chunk(context, update, 1);
    adam.set_learning_rate(schedule(update));
    // [train]
    adam.zero_gradients();
    Tape tape(context);
    auto [scores, carried] = model.forward(tape, characters, state);
    state = std::move(carried);  // detached: gradients stop here
    const Variable loss = cross_entropy(tape, scores, next);
    tape.backward(loss);
    adam.step(context, {.max_norm = 1.0});
    // [/train]
    loss_sum += context.to_host(loss.value()).values<float>()[0];
    ++update;
    session.progress(static_cast<double>(update) / static_cast<double>(options.updates));
    const std::int64_t since = (update - 1) % options.report_every + 1;
    if (since < options.report_every && update < options.updates) continue;
    held_out = held_out_loss(context, model, text.held_out);
    kept.set("h", context.to_host(state.h.value()));
    kept.set("c", context.to_host(state.c.value()));
    session.report(run,
                   {static_cast<double>(update), loss_sum / static_cast<double>(since), held_out});
    loss_sum = 0.0;
  }
  if (session.stopped()) return std::nullopt;
  return held_out;
}

int run(const Options& options) {
  const auto path = shakespeare::find_text();
  if (!path) {
    fmt::print("skipped: {}\n", shakespeare::text_missing());
    return 77;
  }
  const Text text = shakespeare::read_text(*path);
  Context context(Device::cpu(),
                  {.threads = options.threads, .seed = static_cast<std::uint64_t>(options.seed)});
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  training::Session session(
      context, options,
      {.title =
           fmt::format("Tiny Shakespeare: LSTM of {} units, {} streams, chunks of {}, dropout {}, "
                       "Adam {}, seed {}",
                       options.hidden, options.batch, options.chunk, options.dropout, options.rate,
                       options.seed),
       .columns = {"update", "train (nats per character)", "held-out (nats per character)"},
       .levels = {{"nats per character", 1.988, "3-gram"}, {"nats per character", 1.562, "5-gram"}},
       .settings = {{"batch", real(options.batch)},
                    {"chunk", real(options.chunk)},
                    {"dropout", options.dropout},
                    {"embedding", real(options.embedding)},
                    {"hidden", real(options.hidden)},
                    {"rate", options.rate},
                    {"report-every", real(options.report_every)},
                    {"seed", real(options.seed)},
                    {"updates", real(options.updates)}}});
  Model model(options, text.alphabet.size());
  const std::optional<double> reached = train(context, options, text, model, session);
  if (!reached) return session.say_stopped();
  session.say(fmt::format(
      "held-out: {:.4f} nats per character, {:.0f} s of CPU time on {} thread{}", *reached,
      training::Session::cpu_seconds(), context.threads(), context.threads() == 1 ? "" : "s"));
  if (options.sample > 0)
    session.say(fmt::format("\n{}\n", write(context, model, text.alphabet, "\n", options)));
  if (options.most > 0.0 && *reached > options.most) {
    session.say(fmt::format("that is more than {:.3f}", options.most));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a character language model on tiny Shakespeare.", "example_shakespeare");
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  const auto count = [&app](const char* name, std::int64_t& value, std::int64_t least,
                            const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(least, kMany))->capture_default_str();
  };
  count("--updates", options.updates, 1, "of the parameters");
  count("--hidden", options.hidden, 1, "units of the LSTM");
  count("--embedding", options.embedding, 1, "width of a character's vector");
  count("--batch", options.batch, 1, "streams that the text is read as");
  count("--chunk", options.chunk, 1, "characters of each that an update sees");
  count("--report-every", options.report_every, 1, "updates between two looks at what is held out");
  app.add_option("--rate", options.rate, "largest learning rate")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--dropout", options.dropout, "of the LSTM's input and output")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  count("--sample", options.sample, 0, "characters to write at the end");
  app.add_option("--temperature", options.temperature, "of the sample: below 1 it dares less")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  app.add_option("--most", options.most, "fail above this held-out loss");
  training::add_options(app, options);
  if (const int status = bench::parse_command_line(app, argc, argv); status >= 0) return status;
  return bench::run_program("example_shakespeare", [&] { return run(options); });
}
