#include "bench/device/device_bench.hpp"

namespace packrnn::bench {

// Compiled once for each of the two programs.
#ifdef PACKRNN_SIMT
const bool kSimulated = true;
#else
const bool kSimulated = false;
#endif

}  // namespace packrnn::bench
