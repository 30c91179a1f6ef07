// What tests can set of the simt devices; what they can do is runtime/gpu.hpp.
#pragma once

#include <cstddef>

#include "packrnn/runtime/gpu.hpp"

namespace packrnn::simt {

/// Like an H200, scaled down to so many multiprocessors and 4 GiB so that persistent kernels of
/// small tests fill it: with clusters and cooperative launches.
gpu::Properties small_h200(int multiprocessors = 8);
/// Like an A100, scaled down to `multiprocessors`: compute capability 8.0, no clusters.
gpu::Properties small_a100(int multiprocessors = 4);

/// What every simt device is from here on; from the start small_h200(), or small_a100() with
/// PACKRNN_SIMT_MODEL=a100, or with =h200 one of all 132 multiprocessors. (With ThreadSanitizer,
/// small_h200(4): each wait takes it time for every thread that there is.) Only while nothing uses
/// a device.
void set_model(const gpu::Properties& model);
/// Bytes that are allocated on the device now; what was released on a stream counts until the
/// stream got there.
std::size_t allocated(int device);
/// Runs what is still to be done on all streams, as a device does while the host is elsewhere.
void catch_up();

}  // namespace packrnn::simt
