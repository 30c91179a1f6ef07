// Which instruction set the CPU kernels run with here.
#pragma once

#include <string>

namespace packrnn::kernels {

/// For example "AVX3 (512-bit vectors)". Chosen once per process from what the CPU offers.
std::string cpu_target();

}  // namespace packrnn::kernels
