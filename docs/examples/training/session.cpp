#include "docs/examples/training/session.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <packrnn/layers/safetensors.hpp>
#include <packrnn/runtime/error.hpp>
#include <utility>

#include "bench/interrupt.hpp"
#include "bench/machine.hpp"

namespace packrnn::training {
namespace {

constexpr const char* kPart = "session.part";
constexpr const char* kSetting = "setting.";

std::vector<std::string> title_lines(const Context& context, const std::string& title) {
  const bench::Machine machine = bench::describe_machine(context, false);
  return {title, fmt::format("{}, {}, {} thread{}, commit {}", machine.device, machine.cpu,
                             machine.threads, machine.threads == 1 ? "" : "s", machine.commit)};
}

/// The numbers of a checkpoint whose names begin with `prefix`, and without it.
std::map<std::string, double> numbers_of(const SafeTensors& file, const std::string& prefix) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : file.state_dict(prefix))
    numbers[name] = value.dtype() == Dtype::i64
                        ? static_cast<double>(value.values<std::int64_t>()[0])
                        : value.values<double>()[0];
  return numbers;
}

}  // namespace

Session::Session(const Context& context, const Options& options, Description description)
    : options_(options),
      settings_(std::move(description.settings)),
      curve_(title_lines(context, description.title), std::move(description.columns),
             std::move(description.levels)),
      progress_(description.parts, "training") {
  bench::catch_interrupt();
  fmt::print("{}\n", description.title);
  if (options_.checkpoint.empty() || !std::filesystem::exists(options_.checkpoint)) return;
  check_settings();
  const SafeTensors file = SafeTensors::open(options_.checkpoint);
  saved_part_ = static_cast<std::int64_t>(numbers_of(file, "integers.").at(kPart));
  std::map<std::string, double> numbers = numbers_of(file, "reals.");
  curve_.take(numbers);
}

void Session::check_settings() const {
  const std::map<std::string, double> made_with =
      numbers_of(SafeTensors::open(options_.checkpoint), std::string("reals.") + kSetting);
  for (const auto& [name, value] : settings_) {
    const auto found = made_with.find(name);
    if (found == made_with.end() || found->second != value)
      throw InvalidArgument(fmt::format(
          "{} was made with {} = {}, this training has {}: name another checkpoint, or remove it "
          "to begin anew",
          options_.checkpoint, name,
          found == made_with.end() ? "nothing" : fmt::format("{}", found->second), value));
  }
}

bool Session::resume(TrainingRun& run, int part, const std::string& name) {
  part_ = part;
  progress_.start(name);
  if (part < saved_part_) return false;
  if (part > saved_part_) return true;
  load_checkpoint(options_.checkpoint, run);
  run.integers.erase(kPart);
  std::erase_if(run.reals, [](const auto& number) {
    return number.first.starts_with(kSetting) || number.first.starts_with("curve.");
  });
  if (!curve_.rows().empty())
    say(fmt::format("going on from {}: {}", options_.checkpoint, curve_.last()));
  return true;
}

void Session::progress(double done) { progress_.update(done, note_); }

void Session::report(const TrainingRun& run, std::vector<double> row, bool say_it) {
  curve_.add(std::move(row));
  ++reports_;
  note_ = curve_.last();
  if (say_it) say(note_);
  if (!options_.curve.empty()) curve_.write(options_.curve);
  if (options_.checkpoint.empty()) return;
  TrainingRun saved = run;
  saved.integers[kPart] = part_;
  for (const auto& [name, value] : settings_) saved.reals[kSetting + name] = value;
  curve_.put(saved.reals);
  save_checkpoint(options_.checkpoint, saved);
}

void Session::say(std::string_view line) {
  progress_.clear();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

bool Session::stopped() const noexcept {
  return bench::interrupted() || (options_.stop_after > 0 && reports_ >= options_.stop_after);
}

int Session::say_stopped() {
  constexpr int kInterrupted = 130;
  say(options_.checkpoint.empty()
          ? "stopped; without --checkpoint nothing was kept"
          : fmt::format("stopped; the same command goes on from {}", options_.checkpoint));
  return bench::interrupted() ? kInterrupted : 0;
}

double Session::cpu_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

}  // namespace packrnn::training
