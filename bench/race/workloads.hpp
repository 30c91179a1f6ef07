// The nine batches that CPU engines are compared on: one stream, speech, sentences, a real data
// set's shape, a heavy tail, large layers, and a control where nothing is ragged.
#pragma once

#include <cstdint>
#include <packrnn/layers/recurrent.hpp>
#include <string>
#include <vector>

namespace packrnn::bench {

struct RaceWorkload {
  std::string name, what;
  std::int64_t input = 0, hidden = 0, layers = 1;
  bool bidirectional = false;
  std::vector<std::int64_t> lengths;
  /// What we aim at: tokens/s as a multiple of the fastest other engine, on one and two threads.
  double goal_1 = 1.0, goal_2 = 1.0;
  double goal_training = 1.0;  // on one and on two

  std::int64_t steps() const;
  std::int64_t tokens() const;
  /// The part of a padded batch that is padding.
  double padding() const;
  double goal(int threads, bool training) const {
    if (training) return goal_training;
    return threads == 1 ? goal_1 : goal_2;
  }
  std::int64_t directions() const { return bidirectional ? 2 : 1; }
};

/// W1 to W9.
std::vector<RaceWorkload> race_workloads();

/// `cell`: "lstm" or "gru". The parameters are the same however they are stored.
Recurrent make_layer(const RaceWorkload& workload, const std::string& cell,
                     WeightStorage storage = WeightStorage::full);

}  // namespace packrnn::bench
