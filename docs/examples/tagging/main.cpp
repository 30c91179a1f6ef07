// Parts of speech: packed sequences inside packed sequences. A bidirectional LSTM spells the
// distinct words of a batch, packed character by character; its last states, gathered to the places
// where the words stand, go beside the words' own vectors into another one over the sentences.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <packrnn/packrnn.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/program.hpp"
#include "docs/examples/tagging/treebank.hpp"
#include "docs/examples/training/session.hpp"

namespace {

using namespace packrnn;
using tagging::kTags;
using tagging::Sentence;

constexpr int kFolds = 10;

struct Options : training::Options {
  std::int64_t epochs = 20, batch = 16, hidden = 100, word = 64, character = 32, spelling = 50;
  int fold = 0, folds = 1;
  double rate = 4e-3, dropout = 0.4, forget = 0.3, least = 0.0;
};

/// Without upper case, so that the place in a sentence does not matter: that is for the spelling.
std::string lower(std::string word) {
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  return word;
}

/// Numbers of the words that were learnt from; 0 stands for all others.
class Vocabulary {
 public:
  explicit Vocabulary(std::span<const Sentence* const> sentences) {
    for (const Sentence* sentence : sentences)
      for (const tagging::Word& word : *sentence) {
        Entry& entry = entries_[lower(word.text)];
        if (++entry.count == 1) entry.number = std::ssize(entries_);
      }
  }

  std::int64_t size() const noexcept { return std::ssize(entries_) + 1; }
  std::int64_t number(const std::string& word) const {
    const auto found = entries_.find(lower(word));
    return found == entries_.end() ? 0 : found->second.number;
  }
  bool once(const std::string& word) const {
    const auto found = entries_.find(lower(word));
    return found != entries_.end() && found->second.count == 1;
  }

 private:
  struct Entry {
    std::int64_t number = 0, count = 0;
  };
  std::map<std::string, Entry> entries_;
};

/// One of ten parts in turn is for testing; the other sentences are learnt from.
struct Fold {
  std::vector<const Sentence*> train, test;

  Fold(const std::vector<Sentence>& all, int number) {
    for (std::size_t i = 0; i < all.size(); ++i)
      (i % kFolds == static_cast<std::size_t>(number) ? test : train).push_back(&all[i]);
  }
};

struct Batch {
  PackedSequence words, tags;  // [total] of the sentences: numbers
  Tensor spelling_of;          // [total]: which of the distinct words
  PackedSequence spellings;    // [bytes] of the distinct words
};

/// `forget` says of a word whether it is to be taken for an unknown one.
template <class Forget>
Batch make_batch(Context& context, std::span<const Sentence* const> sentences,
                 const Vocabulary& vocabulary, Forget&& forget) {
  std::vector<std::int64_t> lengths;
  for (const Sentence* sentence : sentences) lengths.push_back(std::ssize(*sentence));
  const PackedLayoutPtr layout = PackedLayout::make(lengths);
  const auto integers = [](std::int64_t count) { return Tensor::empty({count}, Dtype::i64); };
  Tensor words = integers(layout->total()), tags = integers(layout->total()),
         spelling_of = integers(layout->total());
  std::map<std::string_view, std::int64_t> distinct;
  std::vector<Tensor> spellings;
  for (std::int64_t n = 0; n < layout->batch(); ++n)
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(n)]; ++t) {
      const tagging::Word& word =
          (*sentences[static_cast<std::size_t>(n)])[static_cast<std::size_t>(t)];
      const auto row = static_cast<std::size_t>(layout->row(n, t));
      const auto [known, is_new] = distinct.emplace(word.text, std::ssize(distinct));
      if (is_new) {
        spellings.push_back(integers(std::ssize(word.text)));
        std::ranges::transform(word.text, spellings.back().values<std::int64_t>().begin(),
                               [](char c) { return static_cast<unsigned char>(c); });
      }
      words.values<std::int64_t>()[row] = forget(word.text) ? 0 : vocabulary.number(word.text);
      tags.values<std::int64_t>()[row] = word.tag;
      spelling_of.values<std::int64_t>()[row] = known->second;
    }
  const std::vector<TensorView> views(spellings.begin(), spellings.end());
  Context host(Device::cpu(), {.threads = 1});
  const PackedSequence packed = pack_sequence(host, views);
  return {{context.to_device(words), layout},
          {context.to_device(tags), layout},
          context.to_device(spelling_of),
          {context.to_device(packed.data()), packed.layout_ptr()}};
}

class Model {
 public:
  Model(const Options& o, std::int64_t words, std::uint64_t seed)
      : dropout_(o.dropout),
        spelling_size_(2 * o.spelling),
        words_({.num_embeddings = words, .embedding_dim = o.word, .seed = seed}),
        characters_({.num_embeddings = 256, .embedding_dim = o.character, .seed = seed + 1}),
        speller_({.input_size = o.character,
                  .hidden_size = o.spelling,
                  .bidirectional = true,
                  .seed = seed + 2}),
        reader_({.input_size = o.word + spelling_size_,
                 .hidden_size = o.hidden,
                 .bidirectional = true,
                 .seed = seed + 3}),
        head_({.in_features = 2 * o.hidden, .out_features = std::ssize(kTags), .seed = seed + 4}) {}

  // [model]
  /// Scores [total, 17] of the words of all sentences.
  PackedVariable scores(Tape& tape, const Batch& batch) {
    // The last states of every distinct word, read forward and backward: [distinct, 2, S].
    const PackedVariable characters = characters_.forward(tape, batch.spellings);
    const StateVariable ends = speller_.forward(tape, characters, {}, true).state;
    const Variable spelt = reshape(tape, ends.h, {ends.h.size(0), spelling_size_});
    const PackedVariable words = words_.forward(tape, batch.words);
    const PackedVariable x = {
        concat(tape, {words.data, gather_rows(tape, spelt, batch.spelling_of)}), words.layout};
    const PackedVariable read = reader_.forward(tape, dropout(tape, x, dropout_)).output;
    return head_.forward(tape, dropout(tape, read, dropout_));
  }
  // [/model]

  std::vector<TrainingRun::Model> parts() {
    return {{"words.", &words_.parameters()},
            {"characters.", &characters_.parameters()},
            {"speller.", &speller_.parameters()},
            {"reader.", &reader_.parameters()},
            {"head.", &head_.parameters()}};
  }

 private:
  double dropout_;
  std::int64_t spelling_size_;
  Embedding words_, characters_;
  Lstm speller_, reader_;
  Linear head_;
};

/// Which words of the test sentences are tagged right: of all, and of those never seen before.
struct Accuracy {
  double all = 0.0, unknown = 0.0;
};

Accuracy accuracy(Context& context, Model& model, const Vocabulary& vocabulary,
                  std::span<const Sentence* const> sentences) {
  const Batch batch = make_batch(context, sentences, vocabulary, [](const auto&) { return false; });
  Tape tape(context, {.training = false});
  const Tensor best = context.to_host(argmax(context, model.scores(tape, batch).data.value()));
  const Tensor words = context.to_host(batch.words.data()),
               tags = context.to_host(batch.tags.data());
  double right = 0, unknown = 0, unknown_right = 0;
  for (std::size_t row = 0; row < best.values<std::int64_t>().size(); ++row) {
    const bool same = best.values<std::int64_t>()[row] == tags.values<std::int64_t>()[row];
    const bool is_unknown = words.values<std::int64_t>()[row] == 0;
    right += same;
    unknown += is_unknown;
    unknown_right += same && is_unknown;
  }
  return {right / static_cast<double>(tags.elements()), unknown_right / std::max(unknown, 1.0)};
}

/// Trains on one fold, the part-th of the session.
void train(Context& context, const Options& options, const std::vector<Sentence>& all, int part,
           training::Session& session) {
  const int number = (options.fold + part) % kFolds;
  const auto seed = static_cast<std::uint64_t>(options.seed * kFolds + number);
  const Fold fold(all, number);
  const Vocabulary vocabulary(fold.train);
  Model model(options, vocabulary.size(), seed * 1000);
  context.random().reseed(seed);
  TrainingRun run{
      .models = model.parts(), .generator = &context.random(), .integers = {{"epoch", 0}}};
  std::vector<Parameters*> parameters;
  for (const TrainingRun::Model& each : run.models) parameters.push_back(each.parameters);
  Adam adam(parameters, {.learning_rate = options.rate});
  run.optimizer = &adam;
  if (!session.resume(run, part, fmt::format("fold {}", number))) return;

  const auto size = static_cast<std::size_t>(options.batch);
  const auto updates = static_cast<std::int64_t>((fold.train.size() + size - 1) / size);
  const Schedule schedule = cosine_schedule(options.rate, options.epochs * updates);
  std::int64_t& epoch = run.integers["epoch"];
  while (epoch < options.epochs && !session.stopped()) {
    std::mt19937_64 random(seed << 32 | static_cast<std::uint64_t>(epoch));
    std::vector<const Sentence*> order = fold.train;
    std::ranges::shuffle(order, random);
    // A word that was seen once tells little by itself; what to do with such is learnt here.
    const auto forget = [&](const std::string& word) {
      return vocabulary.once(word) && std::generate_canonical<double, 53>(random) < options.forget;
    };
    double loss_sum = 0.0;
    for (std::int64_t update = 0; update < updates; ++update) {
      const std::size_t begin = static_cast<std::size_t>(update) * size;
      const Batch batch =
          make_batch(context, std::span(order).subspan(begin, std::min(size, order.size() - begin)),
                     vocabulary, forget);
      adam.set_learning_rate(schedule(epoch * updates + update));
      adam.zero_gradients();
      Tape tape(context);
      const Variable loss = cross_entropy(tape, model.scores(tape, batch), batch.tags);
      tape.backward(loss);
      adam.step(context, {.max_norm = 5.0});
      loss_sum += context.to_host(loss.value()).values<float>()[0];
      session.progress(static_cast<double>(epoch * updates + update + 1) /
                       static_cast<double>(options.epochs * updates));
    }
    ++epoch;
    const Accuracy reached = accuracy(context, model, vocabulary, fold.test);
    session.report(run, {static_cast<double>(number), static_cast<double>(epoch),
                         loss_sum / static_cast<double>(updates), reached.all, reached.unknown});
  }
}

int run(const Options& options) {
  const auto path = tagging::find_treebank();
  if (!path) {
    fmt::print("skipped: {}\n", tagging::treebank_missing());
    return 77;
  }
  const std::vector<Sentence> sentences = tagging::read_treebank(*path);
  Context context(Device::cpu(), {.threads = options.threads});
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  training::Session session(
      context, options,
      {.title =
           fmt::format("English PUD: BiLSTM of {} units over words of {} and spellings of 2 x {}, "
                       "dropout {}, batches of {}, Adam {}, seed {}",
                       options.hidden, options.word, options.spelling, options.dropout,
                       options.batch, options.rate, options.seed),
       .columns = {"fold", "epoch", "train (loss)", "test (accuracy)", "unknown words (accuracy)"},
       .levels = {{"accuracy", 0.862, "each word's most frequent tag"},
                  {"accuracy", 0.608, "unknown words by their shape"}},
       .settings = {{"batch", real(options.batch)},
                    {"character", real(options.character)},
                    {"dropout", options.dropout},
                    {"epochs", real(options.epochs)},
                    {"fold", real(options.fold)},
                    {"forget", options.forget},
                    {"hidden", real(options.hidden)},
                    {"rate", options.rate},
                    {"seed", real(options.seed)},
                    {"spelling", real(options.spelling)},
                    {"word", real(options.word)}},
       .parts = options.folds});
  for (int part = 0; part < options.folds && !session.stopped(); ++part)
    train(context, options, sentences, part, session);
  if (session.stopped()) return session.say_stopped();
  double mean = 0.0;
  for (const std::vector<double>& row : session.curve().rows())
    if (row[1] == real(options.epochs)) mean += row[3] / options.folds;
  session.say(fmt::format("test accuracy, mean of {} fold{}: {:.4f}", options.folds,
                          options.folds == 1 ? "" : "s", mean));
  if (mean < options.least) {
    session.say(fmt::format("that is less than {:.3f}", options.least));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a tagger of parts of speech on UD English PUD.", "example_tagging");
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  const auto count = [&app](const char* name, auto& value, std::int64_t least, std::int64_t most,
                            const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(least, most))->capture_default_str();
  };
  const auto part = [&app](const char* name, double& value, double most, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(0.0, most))->capture_default_str();
  };
  count("--epochs", options.epochs, 1, kMany, "times that all sentences are seen");
  count("--batch", options.batch, 1, kMany, "sentences");
  count("--hidden", options.hidden, 1, kMany, "units that read the words, each way");
  count("--word", options.word, 1, kMany, "width of a word's vector");
  count("--character", options.character, 1, kMany, "width of a character's vector");
  count("--spelling", options.spelling, 1, kMany, "units that read the characters, each way");
  count("--fold", options.fold, 0, kFolds - 1, "sentence i is for testing if i mod 10 is this");
  count("--folds", options.folds, 1, kFolds, "folds to train on one after another, from --fold on");
  part("--rate", options.rate, 1.0, "learning rate at first");
  part("--dropout", options.dropout, 0.99, "of what goes into the sentences' LSTM and comes out");
  part("--forget", options.forget, 1.0, "how often a word seen once is taken for an unknown one");
  part("--least", options.least, 1.0, "fail below this mean accuracy");
  training::add_options(app, options);
  if (const int status = bench::parse_command_line(app, argc, argv); status >= 0) return status;
  return bench::run_program("example_tagging", [&] { return run(options); });
}
