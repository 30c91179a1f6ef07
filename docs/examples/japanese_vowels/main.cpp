// Who speaks? Nine speakers, 640 recordings of a vowel pair, 7 to 29 frames each: a recurrent layer
// reads the packed frames, its final state goes through a Linear. The data set is bench/'s.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <packrnn/packrnn.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/japanese_vowels.hpp"
#include "bench/program.hpp"
#include "docs/examples/training/session.hpp"

namespace {

using namespace packrnn;
using bench::JapaneseVowels;
using bench::Recording;

struct Options : training::Options {
  std::string model = "lstm";
  std::int64_t epochs = 100, batch = 27, hidden = 100;
  int seeds = 3;
  bool naive = false;
  double least = 0.0;
};

/// Recordings as one batch on the context's device: frames [T, N, 12] padded with zeros, lengths,
/// and speakers [N] from 0.
struct Batch {
  Tensor frames, speakers;
  std::vector<std::int64_t> lengths;
};

Batch make_batch(Context& context, const std::vector<Recording>& all,
                 std::span<const std::size_t> which) {
  Batch batch;
  for (const std::size_t i : which) batch.lengths.push_back(all[i].length);
  const std::int64_t T = *std::ranges::max_element(batch.lengths);
  const auto N = static_cast<std::int64_t>(which.size());
  constexpr std::int64_t kI = JapaneseVowels::kFeatures;
  Tensor padded = Tensor::zeros({T, N, kI}, Dtype::f32), speakers = Tensor::empty({N}, Dtype::i64);
  float* const frames = padded.span().data<float>();
  for (std::int64_t n = 0; n < N; ++n) {
    const Recording& recording = all[which[static_cast<std::size_t>(n)]];
    speakers.span().data<std::int64_t>()[n] = recording.speaker - 1;
    for (std::int64_t t = 0; t < recording.length; ++t)
      std::copy_n(recording.frames.begin() + t * kI, kI, frames + (t * N + n) * kI);
  }
  batch.frames = context.to_device(padded);
  batch.speakers = context.to_device(speakers);
  return batch;
}

class Model {
 public:
  Model(const Options& o, std::uint64_t seed)
      : directions_(o.model == "bilstm" ? 2 : 1),
        hidden_(o.hidden),
        rnn_(o.model == "gru"
                 ? static_cast<Recurrent>(Gru({.input_size = JapaneseVowels::kFeatures,
                                               .hidden_size = o.hidden,
                                               .seed = seed}))
                 : static_cast<Recurrent>(Lstm({.input_size = JapaneseVowels::kFeatures,
                                                .hidden_size = o.hidden,
                                                .bidirectional = o.model == "bilstm",
                                                .seed = seed}))),
        head_({.in_features = hidden_ * directions_,
               .out_features = JapaneseVowels::kSpeakers,
               .seed = seed + 1}) {}

  // [model]
  /// Scores [N, 9]: a Linear of the last states, forward's at a recording's own end.
  Variable scores(Tape& tape, PackedSequence frames) {
    const std::int64_t N = frames.layout().batch();
    const auto [output, state] = rnn_.forward(tape, std::move(frames), {}, true);
    return head_.forward(tape, reshape(tape, state.h, {N, directions_ * hidden_}));
  }
  // [/model]

  Parameters& rnn() { return rnn_.parameters(); }
  Parameters& head() { return head_.parameters(); }

 private:
  std::int64_t directions_, hidden_;
  Recurrent rnn_;
  Linear head_;
};

/// With --naive, padding runs through the network as if it were speech.
PackedSequence pack(Context& context, const Options& options, const Batch& batch) {
  std::vector<std::int64_t> lengths = batch.lengths;
  if (options.naive) std::ranges::fill(lengths, batch.frames.size(0));
  return pack_padded_sequence(context, batch.frames, Lengths(std::move(lengths)));
}

double accuracy(Context& context, const Options& options, Model& model,
                const std::vector<Recording>& recordings) {
  std::vector<std::size_t> all(recordings.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const Batch batch = make_batch(context, recordings, all);
  Tape tape(context, {.training = false});
  const Tensor best =
      context.to_host(argmax(context, model.scores(tape, pack(context, options, batch)).value()));
  const Tensor speakers = context.to_host(batch.speakers);
  const auto guess = best.values<std::int64_t>();
  const auto right = speakers.values<std::int64_t>();
  std::int64_t count = 0;
  for (std::size_t n = 0; n < guess.size(); ++n) count += guess[n] == right[n];
  return static_cast<double>(count) / static_cast<double>(guess.size());
}

/// Trains one model, the part-th of the session.
void train(Context& context, const Options& options, const JapaneseVowels& data, int part,
           training::Session& session) {
  const std::int64_t seed = options.seed + part;
  Model model(options, static_cast<std::uint64_t>(seed) * 1000);
  Adam adam({&model.rnn(), &model.head()}, {.learning_rate = 1e-3});
  TrainingRun run{.models = {{"rnn.", &model.rnn()}, {"head.", &model.head()}},
                  .optimizer = &adam,
                  .integers = {{"epoch", 0}}};
  if (!session.resume(run, part, fmt::format("seed {}", seed))) return;
  std::int64_t& epoch = run.integers["epoch"];
  std::vector<std::size_t> order(data.train.size());
  while (epoch < options.epochs && !session.stopped()) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 shuffle(static_cast<std::uint64_t>(seed) << 32 |
                            static_cast<std::uint64_t>(epoch));
    std::ranges::shuffle(order, shuffle);
    double loss_sum = 0.0;
    for (std::size_t at = 0; at < order.size(); at += static_cast<std::size_t>(options.batch)) {
      const std::size_t count =
          std::min(order.size() - at, static_cast<std::size_t>(options.batch));
      const Batch batch = make_batch(context, data.train, std::span(order).subspan(at, count));
      // [train]
      adam.zero_gradients();
      Tape tape(context);
      const Variable scores = model.scores(tape, pack(context, options, batch));
      const Variable loss = cross_entropy(tape, scores, batch.speakers);
      tape.backward(loss);
      adam.step(context, {.max_norm = 1.0});
      // [/train]
      loss_sum += context.to_host(loss.value()).values<float>()[0] * static_cast<double>(count);
    }
    ++epoch;
    session.report(run,
                   {static_cast<double>(seed), static_cast<double>(epoch),
                    loss_sum / static_cast<double>(order.size()),
                    accuracy(context, options, model, data.test)},
                   epoch == 20 || epoch == 50 || epoch == options.epochs);
    session.progress(static_cast<double>(epoch) / static_cast<double>(options.epochs));
  }
}

/// The mean of the last epochs of all seeds.
double reached(const Options& options, const training::Curve& curve) {
  double sum = 0.0;
  for (const std::vector<double>& row : curve.rows())
    if (row[1] == static_cast<double>(options.epochs)) sum += row[3];
  return sum / static_cast<double>(options.seeds);
}

int run(const Options& options) {
  const auto folder = bench::find_japanese_vowels();
  if (!folder) {
    fmt::print("skipped: {}\n", bench::japanese_vowels_missing());
    return 77;
  }
  const JapaneseVowels data = bench::read_japanese_vowels(*folder);
  Context context(Device::cpu(), {.threads = options.threads});
  training::Session session(
      context, options,
      {.title =
           fmt::format("Japanese Vowels: {} of {} units{}, batches of {}, Adam", options.model,
                       options.hidden, options.naive ? ", padding fed as data" : "", options.batch),
       .columns = {"seed", "epoch", "train (loss)", "test (accuracy)"},
       .levels = {{"accuracy", 0.968, "LDA of the mean over time"}},
       .settings = {{"batch", static_cast<double>(options.batch)},
                    {"directions", options.model == "bilstm" ? 2 : 1},
                    {"epochs", static_cast<double>(options.epochs)},
                    {"gru", options.model == "gru" ? 1 : 0},
                    {"hidden", static_cast<double>(options.hidden)},
                    {"naive", options.naive ? 1 : 0},
                    {"seed", static_cast<double>(options.seed)}},
       .parts = options.seeds});
  for (int part = 0; part < options.seeds && !session.stopped(); ++part)
    train(context, options, data, part, session);
  if (session.stopped()) return session.say_stopped();
  const double mean = reached(options, session.curve());
  session.say(fmt::format("mean test accuracy after {} epochs: {:.3f}", options.epochs, mean));
  if (mean < options.least) {
    fmt::print("that is less than {:.3f}\n", options.least);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a speaker classifier on Japanese Vowels.", "example_japanese_vowels");
  app.add_option("--model", options.model, "lstm, gru or bilstm")
      ->check(CLI::IsMember({"lstm", "gru", "bilstm"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs)->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 270))->capture_default_str();
  app.add_option("--hidden", options.hidden)->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--seeds", options.seeds, "trainings, of seeds --seed, --seed + 1, ...")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--naive", options.naive, "feed the padding as if it were data");
  app.add_option("--least", options.least, "fail below this mean accuracy");
  training::add_options(app, options);
  if (const int status = bench::parse_command_line(app, argc, argv); status >= 0) return status;
  return bench::run_program("example_japanese_vowels", [&] { return run(options); });
}
