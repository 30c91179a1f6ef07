// Reasoning in steps: a recurrent relational network solves sudoku puzzles of 4 x 4 cells, or
// answers questions about short stories. docs/rrn.md explains it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <packrnn/packrnn.hpp>
#include <string>
#include <vector>

#include "bench/program.hpp"
#include "docs/examples/rrn/babi.hpp"
#include "docs/examples/rrn/tasks.hpp"
#include "docs/examples/training/session.hpp"

namespace {

using namespace packrnn;
using namespace packrnn::rrn;

struct Options : training::Options {
  std::string task = "sudoku4", stories = "files", variant = "paper", init = "xavier";
  int babi_task = 15;
  // 0: as the task has it.
  std::int64_t updates = 0, steps = 0, hidden = 0;
  double rate = 0.0;
  std::int64_t batch = 32, every = 50;
  double least = 0.0, least_gain = -1.0;  // nothing is less

  bool sudoku() const { return task == "sudoku4"; }
  void fill_in() {
    if (updates == 0) updates = sudoku() ? 900 : 3000;
    if (steps == 0) steps = sudoku() ? 6 : 3;
    if (hidden == 0) hidden = sudoku() ? 32 : 64;
    if (rate == 0.0) rate = sudoku() ? 2e-3 : 1e-3;
  }
  std::string name() const {
    return sudoku() ? "sudoku of 4 x 4 cells"
                    : fmt::format("bAbI {} ({})", babi_task,
                                  stories == "made" ? "made by rule" : "its files");
  }
};

std::unique_ptr<Task> task_of(const Options& options) {
  return make_task({.babi = options.sudoku() ? 0 : options.babi_task,
                    .made = options.stories == "made",
                    .hidden = options.hidden,
                    .batch = options.batch,
                    .variant = options.variant == "paper" ? Variant::paper : Variant::article,
                    .init = options.init == "xavier" ? Init::xavier : Init::pytorch,
                    .seed = static_cast<std::uint64_t>(options.seed)});
}

/// The steps of which a curve is drawn: 1, 2, 4 ... and the last.
std::vector<std::size_t> drawn_steps(const Options& options) {
  std::vector<std::size_t> steps;
  const auto last = static_cast<std::size_t>(options.steps);
  for (std::size_t step = 1; step < last; step *= 2) steps.push_back(step);
  steps.push_back(last);
  return steps;
}

training::Description describe(const Options& options, const std::string& unit) {
  std::vector<std::string> columns = {"update", "train (loss)"};
  for (const std::size_t step : drawn_steps(options))
    columns.push_back(fmt::format("after step {} ({} right)", step, unit));
  return {.title = fmt::format("Recurrent relational network ({}), {}: {} units, {} steps, batches "
                               "of {}, Adam",
                               options.variant, options.name(), options.hidden, options.steps,
                               options.batch),
          .columns = columns,
          .settings = {{"babi", options.sudoku() ? 0 : options.babi_task},
                       {"batch", static_cast<double>(options.batch)},
                       {"every", static_cast<double>(options.every)},
                       {"hidden", static_cast<double>(options.hidden)},
                       {"made", options.stories == "made" ? 1 : 0},
                       {"paper", options.variant == "paper" ? 1 : 0},
                       {"rate", options.rate},
                       {"seed", static_cast<double>(options.seed)},
                       {"steps", static_cast<double>(options.steps)},
                       {"xavier", options.init == "xavier" ? 1 : 0}}};
}

void train(Context& context, const Options& options, Task& task, training::Session& session) {
  const Models models = task.models();
  Adam adam(parameters_of(models), {.learning_rate = options.rate});
  TrainingRun run{.models = models, .optimizer = &adam, .integers = {{"update", 0}}};
  session.resume(run);
  std::int64_t& update = run.integers["update"];
  double loss_sum = 0.0, seconds = 0.0, cpu = 0.0;
  std::int64_t since = 0, all = 0;
  while (update < options.updates && !session.stopped()) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu_start = training::Session::cpu_seconds();
    // [train]
    adam.zero_gradients();
    Tape tape(context);
    const Variable loss = task.loss(tape, update, options.steps);
    const double value = loss.value().values<float>()[0];
    tape.backward(loss);
    adam.step(context);
    // [/train]
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cpu += training::Session::cpu_seconds() - cpu_start;
    ++all;
    ++since;
    loss_sum += value;
    ++update;
    session.progress(static_cast<double>(update) / static_cast<double>(options.updates));
    if (update % options.every != 0 && update != options.updates) continue;
    std::vector<double> row = {static_cast<double>(update), loss_sum / static_cast<double>(since)};
    const Right right = task.judge(context, Part::valid, options.steps);
    for (const std::size_t step : drawn_steps(options)) row.push_back(right.whole[step - 1]);
    session.report(run, std::move(row));
    loss_sum = 0.0;
    since = 0;
  }
  if (all > 0)
    session.say(fmt::format("{:.1f} ms per update ({:.1f} ms of CPU time), {:.0f} {} per second",
                            1e3 * seconds / static_cast<double>(all),
                            1e3 * cpu / static_cast<double>(all),
                            static_cast<double>(all * options.batch) / seconds, task.unit()));
}

void say_steps(const Options& options, const Right& right, const std::string& unit,
               training::Session& session) {
  session.say(fmt::format("what is right of unseen {}, after each step:", unit));
  for (std::size_t step = 0; step < right.whole.size(); ++step)
    session.say(fmt::format(
        "  step {:2}:{} {} {:.3f}{}", step + 1,
        options.sudoku() ? fmt::format(" cells {:.4f},", right.single[step]) : "", unit,
        right.whole[step],
        step >= static_cast<std::size_t>(options.steps) ? "  (more steps than in training)" : ""));
}

int run(Options options) {
  options.fill_in();
  const std::unique_ptr<Task> task = task_of(options);
  if (!task) {
    fmt::print("skipped: {}\n", babi_missing(options.babi_task));
    return 77;
  }
  Context context(Device::cpu(), {.threads = options.threads});
  training::Session session(context, options, describe(options, task->unit()));
  session.say(task->sizes());
  train(context, options, *task, session);
  if (session.stopped()) return session.say_stopped();
  const Right right = task->judge(context, Part::test, 2 * options.steps);
  say_steps(options, right, task->unit(), session);
  const double last = right.whole[static_cast<std::size_t>(options.steps - 1)];
  if (last < options.least || last - right.whole[0] < options.least_gain) {
    session.say(
        fmt::format("after step {} that is less than {:.2f}, or less than {:.2f} above step 1",
                    options.steps, options.least, options.least_gain));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a recurrent relational network.", "example_rrn");
  const auto choice = [&](const char* name, std::string& value, const char* about,
                          const std::vector<std::string>& choices) {
    app.add_option(name, value, about)
        ->check(CLI::IsMember(choices))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->capture_default_str();
  };
  const auto count = [&](const char* name, std::int64_t& value, const char* about,
                         std::int64_t least, std::int64_t most) {
    app.add_option(name, value, about)
        ->check(CLI::Range(least, most))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->capture_default_str();
  };
  choice("--task", options.task, "Sudoku puzzles made by rule, or questions about stories",
         {"sudoku4", "babi"});
  app.add_option("--babi-task", options.babi_task, "Which stories")
      ->check(CLI::IsMember({1, 2, 15, 19}))
      ->capture_default_str();
  choice("--stories", options.stories, "From the files of bAbI, or made by rule",
         {"files", "made"});
  choice("--variant", options.variant, "State per node over steps, or as in the article",
         {"paper", "article"});
  choice("--init", options.init, "How linear layers begin", {"xavier", "pytorch"});
  count("--updates", options.updates, "0: 900 for sudoku4, 3000 for babi", 0, 10'000'000);
  count("--steps", options.steps, "Of reasoning; 0: 6 for sudoku4, 3 for babi", 0, 1000);
  count("--hidden", options.hidden, "0: 32 for sudoku4, 64 for babi", 0, 4096);
  app.add_option("--learning-rate", options.rate, "0: 0.002 for sudoku4, 0.001 for babi")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  count("--batch", options.batch, "Puzzles or questions of an update", 1, 100'000);
  count("--every", options.every, "Updates between reports", 1, 1'000'000);
  app.add_option("--least", options.least, "Fail below this at the last step");
  app.add_option("--least-gain", options.least_gain, "Fail below this above the first step");
  training::add_options(app, options);
  if (const int status = bench::parse_command_line(app, argc, argv); status >= 0) return status;
  return bench::run_program("example_rrn", [&] { return run(options); });
}
