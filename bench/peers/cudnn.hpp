// NVIDIA's cuDNN, as something to compare with: nothing of packrnn uses it. The library is loaded
// when it is asked for, so that the benchmark starts without it. cudnn.cpp is the body where CMake
// found its header in a build with CUDA, no_cudnn.cpp the one that says why there is none.
#pragma once

#include <functional>
#include <memory>
#include <packrnn/layers/recurrent.hpp>
#include <string>
#include <vector>

#include "bench/device/agreement.hpp"
#include "bench/device/cases.hpp"

namespace packrnn::bench {

/// The input of a batch in every layout, on the device. Borrowed.
struct DeviceInput {
  const PackedLayout* layout = nullptr;
  TensorView packed, seq_major, batch_major;  // [total, I], [T, N, I], [N, T, I]

  const TensorView& in(RowOrder order) const {
    return order == RowOrder::packed      ? packed
           : order == RowOrder::seq_major ? seq_major
                                          : batch_major;
  }
};

/// One combination of cuDNN's options, ready to run or refused.
struct CudnnRun {
  std::string algorithm;  // "STANDARD", "PERSIST_STATIC" ...
  std::string data;       // "SEQ_MAJOR_PACKED" ...
  std::string math;       // "FMA_MATH" ...
  RowOrder order = RowOrder::packed;
  double allowed = 0.0;  // difference from ours that rounding explains

  std::string refusal;             // the call that refused it, and its words; empty: it runs
  std::function<void()> run;       // on the context's stream, without a wait
  std::function<Tensor()> output;  // the last output on the host, in `order`; waits

  std::string name() const { return algorithm + " " + data + " " + math; }
};

class Cudnn {
 public:
  /// Null when there is none to be had, with the reason.
  static std::unique_ptr<Cudnn> open(std::string& reason);
  virtual ~Cudnn() = default;

  /// "cuDNN 9.19.0".
  virtual std::string version() const = 0;
  /// Every combination that makes sense for the problem, each tried once. PERSIST_DYNAMIC, which
  /// compiles its kernel for seconds, only for the first problem of its cell and mode, with equal
  /// and with uneven lengths. `context` and `input` are
  /// used as long as the result lives, and `layer` until this returns.
  virtual std::vector<CudnnRun> prepare(Context& context, const Problem& problem,
                                        const Recurrent& layer, const DeviceInput& input) = 0;
};

}  // namespace packrnn::bench
