// packrnn_bench on a GPU: every problem by every way we have, by cuDNN and by PyTorch.
#pragma once

#include "bench/options.hpp"

namespace packrnn::bench {

/// Prints the report and writes it as JSON, after each problem anew. Returns the exit status: 0
/// done, 1 wrong results, 130 interrupted.
int run_device_bench(const Options& options, Device device);

/// Whether the GPUs of this program are simulated (tests/simt).
extern const bool kSimulated;

}  // namespace packrnn::bench
