// Who speaks? Nine speakers, 640 recordings of a vowel pair, 7 to 29 frames each: a recurrent layer
// reads the packed frames, its final state goes through a Linear. The data set is bench/'s.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <packrnn/packrnn.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/japanese_vowels.hpp"
#include "bench/program.hpp"
#include "bench/progress.hpp"

namespace {

using namespace packrnn;
using bench::JapaneseVowels;
using bench::Recording;

struct Options {
  std::string model = "lstm";
  std::int64_t epochs = 100, batch = 27, hidden = 100, seeds = 3;
  bool naive = false;
  int threads = 0;
  double least = 0.0;
  std::string curve;
};

/// Recordings as one batch: frames [T, N, 12] padded with zeros, lengths and speakers from 0.
struct Batch {
  Tensor frames, speakers;
  std::vector<std::int64_t> lengths;
};

Batch make_batch(const std::vector<Recording>& all, std::span<const std::size_t> which) {
  Batch batch;
  for (const std::size_t i : which) batch.lengths.push_back(all[i].length);
  const std::int64_t T = *std::ranges::max_element(batch.lengths);
  const auto N = static_cast<std::int64_t>(which.size());
  constexpr std::int64_t kI = JapaneseVowels::kFeatures;
  batch.frames = Tensor::zeros({T, N, kI}, Dtype::f32);
  batch.speakers = Tensor::empty({N}, Dtype::i64);
  float* const frames = batch.frames.span().data<float>();
  for (std::int64_t n = 0; n < N; ++n) {
    const Recording& recording = all[which[static_cast<std::size_t>(n)]];
    batch.speakers.span().data<std::int64_t>()[n] = recording.speaker - 1;
    for (std::int64_t t = 0; t < recording.length; ++t)
      std::copy_n(recording.frames.begin() + t * kI, kI, frames + (t * N + n) * kI);
  }
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
  const Batch batch = make_batch(recordings, all);
  Tape tape(context, {.training = false});
  const Tensor best = argmax(context, model.scores(tape, pack(context, options, batch)).value());
  const auto guess = best.values<std::int64_t>();
  const auto right = batch.speakers.values<std::int64_t>();
  std::int64_t count = 0;
  for (std::size_t n = 0; n < guess.size(); ++n) count += guess[n] == right[n];
  return static_cast<double>(count) / static_cast<double>(guess.size());
}

struct Epoch {
  std::int64_t seed, number;
  double loss, accuracy;
};

/// One training; the accuracy at its end.
double train(Context& context, const Options& options, const JapaneseVowels& data,
             std::int64_t seed, std::vector<Epoch>& curve, bench::Progress& progress) {
  Model model(options, static_cast<std::uint64_t>(seed) * 1000);
  Adam adam({&model.rnn(), &model.head()}, {.learning_rate = 1e-3});
  std::vector<std::size_t> order(data.train.size());
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 shuffle(static_cast<std::uint64_t>(seed) << 32 |
                            static_cast<std::uint64_t>(epoch));
    std::ranges::shuffle(order, shuffle);
    double loss_sum = 0.0;
    for (std::size_t at = 0; at < order.size(); at += static_cast<std::size_t>(options.batch)) {
      const std::size_t count =
          std::min(order.size() - at, static_cast<std::size_t>(options.batch));
      const Batch batch = make_batch(data.train, std::span(order).subspan(at, count));
      // [train]
      adam.zero_gradients();
      Tape tape(context);
      const Variable scores = model.scores(tape, pack(context, options, batch));
      const Variable loss = cross_entropy(tape, scores, batch.speakers);
      tape.backward(loss);
      adam.step(context, {.max_norm = 1.0});
      // [/train]
      loss_sum += loss.value().values<float>()[0] * static_cast<double>(count);
    }
    curve.push_back({seed, epoch + 1, loss_sum / static_cast<double>(order.size()),
                     accuracy(context, options, model, data.test)});
    progress.update(static_cast<double>(epoch + 1) / static_cast<double>(options.epochs));
  }
  return curve.back().accuracy;
}

void write_curve(const std::string& path, const std::vector<Epoch>& curve) {
  std::ofstream file(path);
  file << "seed,epoch,loss,accuracy\n";
  for (const Epoch& e : curve)
    file << fmt::format("{},{},{:.6f},{:.4f}\n", e.seed, e.number, e.loss, e.accuracy);
  if (!file.flush()) throw FileError(fmt::format("cannot write {}", path));
}

int run(const Options& options) {
  const auto folder = bench::find_japanese_vowels();
  if (!folder) {
    fmt::print("skipped: {}\n", bench::japanese_vowels_missing());
    return 77;
  }
  const JapaneseVowels data = bench::read_japanese_vowels(*folder);
  Context context(Device::cpu(), {.threads = options.threads});
  fmt::print("{} with {} units{}, {} recordings to learn from, {} to be judged by, {} threads\n",
             options.model, options.hidden, options.naive ? ", padding fed as data" : "",
             data.train.size(), data.test.size(), context.threads());
  std::vector<Epoch> curve;
  double sum = 0.0;
  bench::Progress progress(static_cast<int>(options.seeds));
  for (std::int64_t seed = 1; seed <= options.seeds; ++seed) {
    progress.start(fmt::format("seed {}", seed));
    const double reached = train(context, options, data, seed, curve, progress);
    progress.clear();
    sum += reached;
    fmt::print("seed {}: test accuracy", seed);
    for (const Epoch& e : curve)
      if (e.seed == seed && (e.number == 20 || e.number == 50 || e.number == options.epochs))
        fmt::print("  {:.3f} at epoch {}", e.accuracy, e.number);
    fmt::print("\n");
  }
  const double mean = sum / static_cast<double>(options.seeds);
  fmt::print("mean test accuracy after {} epochs: {:.3f}\n", options.epochs, mean);
  if (!options.curve.empty()) write_curve(options.curve, curve);
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
  app.add_option("--seeds", options.seeds, "trainings, of seeds 1, 2, ...")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--naive", options.naive, "feed the padding as if it were data");
  app.add_option("--threads", options.threads, "0: all")->capture_default_str();
  app.add_option("--least", options.least, "fail below this mean accuracy");
  app.add_option("--curve", options.curve, "write loss and accuracy of every epoch as CSV");
  if (const int status = bench::parse_command_line(app, argc, argv); status >= 0) return status;
  return bench::run_program("example_japanese_vowels", [&] { return run(options); });
}
