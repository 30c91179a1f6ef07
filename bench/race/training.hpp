// A workload made ready for training: one step is a forward and a backward from a given dy.
#pragma once

#include <memory>

#include "bench/device/agreement.hpp"
#include "bench/race/batch.hpp"

namespace packrnn::bench {

class TrainingBatch final : public RaceBatch {
 public:
  /// Runs one step.
  TrainingBatch(Context& context, const RaceWorkload& workload, const std::string& cell);

  bool trains() const override { return true; }
  /// As a forward's, and dy [T, N, D*H], zero in the padding.
  void save(const std::filesystem::path& file) const override;
  /// Packed; padded.
  std::vector<Contestant> ours() override;
  /// Of another engine's gradients: of x [T, N, I] where there are tokens, and of all parameters
  /// in our order. Differences count relative to the largest value of each tensor, which stands for
  /// the 1 that bounds the outputs of a forward.
  std::string agreement(const std::filesystem::path& output) const override;

 private:
  /// Input and dy over one layout.
  struct Data {
    PackedLayoutPtr layout;
    std::shared_ptr<const Tensor> x;
    Tensor dy;
  };

  /// As if the sequences had these lengths.
  Data data(const Lengths& lengths) const;
  /// Gives the gradient of x. All that depends on the weights is made anew, as after an optimizer's
  /// step.
  static std::shared_ptr<const Gradient> step(Context& context, Recurrent& layer, const Data& data);
  /// Of one step, beside the weights and the data.
  std::int64_t memory() const;
  std::string compared(std::span<const float> got, RowOrder order) const;

  Context& context_;
  RaceWorkload workload_;
  std::string cell_;
  Recurrent layer_;
  Tensor x_, dy_;  // padded
  Data packed_, padded_;
  std::shared_ptr<const Gradient> dx_;  // expected, as the next
  StateDict gradients_;
};

}  // namespace packrnn::bench
