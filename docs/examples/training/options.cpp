#include "docs/examples/training/options.hpp"

namespace packrnn::training {

void add_options(CLI::App& app, Options& options) {
  constexpr const char* kTraining = "Every training";
  constexpr auto kLast = CLI::MultiOptionPolicy::TakeLast;
  app.add_option("--seed", options.seed, "Of initial values, order and dropout")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
      ->multi_option_policy(kLast)
      ->capture_default_str()
      ->group(kTraining);
  app.add_option("--threads", options.threads, "0: all CPUs of this process")
      ->check(CLI::Range(0, 4096))
      ->multi_option_policy(kLast)
      ->capture_default_str()
      ->group(kTraining);
  app.add_option("--checkpoint", options.checkpoint,
                 "Saved at every report; where it exists, the training goes on from it, with the "
                 "bits of one that was never interrupted")
      ->type_name("FILE")
      ->multi_option_policy(kLast)
      ->group(kTraining);
  app.add_option("--curve", options.curve, "The learning curve as CSV; plot_training.py draws it")
      ->type_name("FILE")
      ->multi_option_policy(kLast)
      ->group(kTraining);
  app.add_option("--stop-after", options.stop_after,
                 "End after so many reports, to go on later (as after Ctrl-C)")
      ->check(CLI::Range(1, 1 << 30))
      ->multi_option_policy(kLast)
      ->group(kTraining);
}

}  // namespace packrnn::training
