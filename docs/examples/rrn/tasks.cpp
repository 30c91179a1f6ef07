#include "docs/examples/rrn/tasks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "docs/examples/rrn/babi.hpp"
#include "docs/examples/rrn/draws.hpp"
#include "docs/examples/rrn/sudoku4.hpp"

namespace packrnn::rrn {
namespace {

constexpr std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Streams of the seed: 0 and on make data, then one for each update.
constexpr std::uint64_t kUpdates = 1000;

/// Counts what is right in each row; `of_row` says to which item, of equally many rows, it belongs.
class Count {
 public:
  explicit Count(std::int64_t steps) : right_{std::vector<double>(at(steps)), {}} {
    right_.whole = right_.single;
  }

  void add(Context& context, std::span<const Variable> scores, const TensorView& targets,
           std::span<const std::int64_t> of_row, std::int64_t items) {
    for (std::size_t step = 0; step < scores.size(); ++step) {
      const Tensor best = argmax(context, scores[step].value());
      std::vector<std::int64_t> wrong(at(items));
      for (std::size_t row = 0; row < of_row.size(); ++row) {
        const bool is_right =
            best.values<std::int64_t>()[row] == targets.values<std::int64_t>()[row];
        right_.single[step] += is_right ? 1.0 : 0.0;
        wrong[at(of_row[row])] += is_right ? 0 : 1;
      }
      right_.whole[step] += static_cast<double>(std::ranges::count(wrong, 0));
    }
    rows_ += static_cast<double>(of_row.size());
    items_ += static_cast<double>(items);
  }

  Right of_all() const {
    Right right = right_;
    for (double& value : right.single) value /= rows_;
    for (double& value : right.whole) value /= items_;
    return right;
  }

 private:
  Right right_;
  double rows_ = 0.0, items_ = 0.0;
};

/// At most so many items are judged at a time: a tape keeps all that it sees.
constexpr std::size_t kJudged = 50;
void in_parts(std::size_t count, const std::function<void(std::size_t, std::size_t)>& judge) {
  for (std::size_t begin = 0; begin < count; begin += kJudged)
    judge(begin, std::min(kJudged, count - begin));
}

class SudokuTask : public Task {
 public:
  explicit SudokuTask(const TaskOptions& options)
      : options_(options),
        data_(make_sudoku4(options.seed)),
        making_{.init = options.init, .generator = Generator(options.seed)},
        model_(making_, options.hidden, options.variant) {}

  Models models() override { return model_.models(); }

  Variable loss(Tape& tape, std::int64_t update, std::int64_t steps) override {
    Draws draws(options_.seed, kUpdates + static_cast<std::uint64_t>(update));
    std::vector<Puzzle> puzzles;
    std::array<std::uint8_t, kDigits> names{1, 2, 3, 4};
    for (std::int64_t i = 0; i < options_.batch; ++i) {
      draws.shuffle(std::span<std::uint8_t>(names));
      puzzles.push_back(renamed(draws.of(std::span<const Puzzle>(data_.train)), names));
    }
    const SudokuBatch batch = make_batch(puzzles);
    return mean_cross_entropy(tape, model_.scores(tape, batch, steps), batch.solution);
  }

  Right judge(Context& context, Part part, std::int64_t steps) override {
    const std::span<const Puzzle> puzzles = part == Part::valid ? data_.valid : data_.test;
    Count count(steps);
    in_parts(puzzles.size(), [&](std::size_t begin, std::size_t size) {
      const SudokuBatch batch = make_batch(puzzles.subspan(begin, size));
      Tape tape(context, {.training = false});
      count.add(context, model_.scores(tape, batch, steps), batch.solution,
                batch.graphs.graph.values<std::int64_t>(), static_cast<std::int64_t>(size));
    });
    return count.of_all();
  }

  std::string unit() const override { return "puzzles"; }
  std::string sizes() const override {
    return fmt::format("{} puzzles of 9 classes to learn from, {} of 1 to watch, {} of 2 to judge",
                       data_.train.size(), data_.valid.size(), data_.test.size());
  }

 private:
  TaskOptions options_;
  Sudoku4 data_;
  Making making_;
  SudokuModel model_;
};

class BabiTask : public Task {
 public:
  BabiTask(const TaskOptions& options, Babi data)
      : options_(options),
        data_(std::move(data)),
        vocabulary_(data_),
        making_{.init = options.init, .generator = Generator(options.seed)},
        model_(making_, vocabulary_.size(), options.hidden, options.variant) {}

  Models models() override { return model_.models(); }

  Variable loss(Tape& tape, std::int64_t update, std::int64_t steps) override {
    Draws draws(options_.seed, kUpdates + static_cast<std::uint64_t>(update));
    std::vector<const Question*> questions;
    std::vector<std::int64_t> first;
    for (std::int64_t i = 0; i < options_.batch; ++i) {
      questions.push_back(&draws.of(std::span<const Question>(data_.train)));
      first.push_back(static_cast<std::int64_t>(draws.between(0, kMostFacts)));
    }
    const BabiBatch batch = make_batch(vocabulary_, questions, first);
    return mean_cross_entropy(tape, model_.scores(tape, batch, steps), batch.answers);
  }

  /// The answers to questions; of the validation part, to some of them.
  Right judge(Context& context, Part part, std::int64_t steps) override {
    constexpr std::size_t kWatched = 500;
    const std::span<const Question> all = part == Part::valid ? data_.valid : data_.test;
    Count count(steps);
    in_parts(part == Part::valid ? std::min(kWatched, all.size()) : all.size(),
             [&](std::size_t begin, std::size_t size) {
               std::vector<const Question*> questions;
               for (const Question& question : all.subspan(begin, size))
                 questions.push_back(&question);
               const std::vector<std::int64_t> first(size, kMostFacts / 2);
               const BabiBatch batch = make_batch(vocabulary_, questions, first);
               std::vector<std::int64_t> own(size);
               std::iota(own.begin(), own.end(), std::int64_t{0});
               Tape tape(context, {.training = false});
               count.add(context, model_.scores(tape, batch, steps), batch.answers, own,
                         static_cast<std::int64_t>(size));
             });
    return count.of_all();
  }

  std::string unit() const override { return "answers"; }
  std::string sizes() const override {
    return fmt::format("{} questions to learn from, {} to watch, {} to judge, {} words",
                       data_.train.size(), data_.valid.size(), data_.test.size(),
                       vocabulary_.size());
  }

 private:
  TaskOptions options_;
  Babi data_;
  Vocabulary vocabulary_;
  Making making_;
  BabiModel model_;
};

}  // namespace

std::unique_ptr<Task> make_task(const TaskOptions& options) {
  if (options.babi == 0) return std::make_unique<SudokuTask>(options);
  if (options.made)
    return std::make_unique<BabiTask>(options, make_babi(options.babi, options.seed));
  const auto files = find_babi(options.babi);
  if (!files) return nullptr;
  return std::make_unique<BabiTask>(options, read_babi(*files));
}

}  // namespace packrnn::rrn
