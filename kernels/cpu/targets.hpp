// Which instruction sets the kernels are compiled for; include before anything of Highway. These
// suffice: the compiler's baseline (portable code on x86-64), SSE4, AVX2 + FMA, AVX-512, and NEON
// on Arm. More would only lengthen the build.
#pragma once

#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                             \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   HWY_WASM | HWY_WASM_EMU256)
