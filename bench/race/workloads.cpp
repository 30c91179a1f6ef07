#include "bench/race/workloads.hpp"

#include <algorithm>
#include <numeric>
#include <packrnn/layers/gru.hpp>
#include <packrnn/layers/lstm.hpp>

namespace packrnn::bench {
namespace {

using LengthList = std::vector<std::int64_t>;

/// Uniform between 100 and 1600 frames, by 8.
const LengthList kSpeech = {198, 189, 177, 169, 165, 165, 153, 149, 139, 138, 135,
                            131, 125, 117, 117, 97,  93,  91,  90,  75,  69,  68,
                            64,  61,  61,  53,  50,  47,  40,  33,  29,  22};
/// Log-normal, mean 25, at most 120.
const LengthList kSentences = {120, 71, 67, 53, 49, 41, 39, 38, 37, 35, 33, 33, 32, 32, 31, 30,
                               30,  30, 29, 29, 28, 28, 27, 25, 24, 24, 23, 22, 22, 21, 21, 20,
                               19,  19, 18, 18, 18, 18, 18, 18, 18, 18, 18, 17, 17, 16, 16, 15,
                               15,  14, 13, 12, 12, 12, 12, 12, 11, 11, 8,  8,  6,  5,  5,  4};
/// Uniform between 7 and 29, as JapaneseVowels.
const LengthList kVowels = {
    29, 29, 29, 29, 29, 29, 29, 28, 28, 28, 28, 28, 27, 27, 27, 27, 27, 27, 27, 27, 26, 26,
    26, 25, 25, 25, 25, 25, 25, 25, 24, 24, 24, 24, 24, 23, 23, 22, 22, 22, 22, 22, 22, 22,
    22, 22, 22, 21, 21, 21, 21, 20, 20, 19, 19, 19, 19, 18, 18, 18, 18, 18, 18, 17, 17, 17,
    17, 17, 17, 16, 16, 16, 15, 15, 15, 15, 15, 14, 14, 14, 14, 14, 14, 14, 14, 13, 13, 13,
    13, 13, 13, 13, 13, 13, 12, 12, 12, 12, 12, 12, 11, 11, 11, 11, 11, 11, 10, 10, 10, 10,
    10, 10, 9,  9,  9,  8,  8,  8,  8,  8,  8,  8,  7,  7,  7,  7,  7,  7};
const LengthList kHeavyTail = {1000, 99, 96, 81, 74, 73, 71, 63, 61, 56, 56, 54, 50, 49, 47, 35};
/// Uniform between 10 and 100.
const LengthList kUniform = {100, 95, 93, 91, 89, 85, 84, 84, 82, 80, 75, 72, 66, 63, 62, 60,
                             55,  55, 53, 52, 50, 41, 37, 37, 35, 35, 33, 30, 21, 20, 15, 10};

}  // namespace

std::int64_t RaceWorkload::steps() const {
  return *std::max_element(lengths.begin(), lengths.end());
}
std::int64_t RaceWorkload::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}
double RaceWorkload::padding() const {
  return 1.0 - static_cast<double>(tokens()) / static_cast<double>(steps() * std::ssize(lengths));
}

std::vector<RaceWorkload> race_workloads() {
  const LengthList one(1, 100), equal(32, 100);
  return {{"W1", "one stream", 256, 256, 1, false, one, 1.15, 1.4, 1.3},
          {"W2", "speech, both directions", 80, 512, 2, true, kSpeech, 1.8, 2.2, 2.1},
          {"W3", "sentences", 256, 256, 1, false, kSentences, 2.2, 2.8, 5.0},
          {"W4", "sentences, larger", 512, 512, 1, false, kSentences, 1.8, 2.3, 4.8},
          {"W5", "vowels", 12, 100, 1, false, kVowels, 2.0, 2.0, 2.4},
          {"W6", "heavy tail", 128, 512, 1, false, kHeavyTail, 5.0, 5.5, 6.0},
          {"W7", "large layer", 1024, 1024, 1, false, kUniform, 1.8, 1.9, 1.9},
          {"W8", "nothing ragged", 256, 256, 1, false, equal, 1.1, 1.25, 1.1},
          {"W9", "one stream, large", 1024, 1024, 1, false, one, 1.05, 1.2, 1.1}};
}

Recurrent make_layer(const RaceWorkload& workload, const std::string& cell, WeightStorage storage) {
  const auto with = [&](auto layer) {
    layer.input_size = workload.input;
    layer.hidden_size = workload.hidden;
    layer.num_layers = workload.layers;
    layer.bidirectional = workload.bidirectional;
    layer.weight_storage = storage;
    layer.seed = 1;
    return layer;
  };
  if (cell == "gru") return Gru(with(GruOptions{}));
  return Lstm(with(LstmOptions{}));
}

}  // namespace packrnn::bench
