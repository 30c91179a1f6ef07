#include "bench/peers/cudnn.hpp"

namespace packrnn::bench {

std::unique_ptr<Cudnn> Cudnn::open(std::string& reason) {
  reason = "not in this build (PACKRNN_CUDA is off, or CMake found no cudnn.h)";
  return nullptr;
}

}  // namespace packrnn::bench
