// Which sanitizer this build has. Sanitizers make everything several times as slow, so their builds
// run the same lines on fewer units, steps, blocks and rounds; never fewer kernels or features.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define PACKRNN_ASAN 1
#elif defined(__SANITIZE_THREAD__) || defined(PACKRNN_SIMT_TSAN)
#define PACKRNN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PACKRNN_ASAN 1
#elif __has_feature(thread_sanitizer)
#define PACKRNN_TSAN 1
#endif
#endif

namespace packrnn::tests {

#if defined(PACKRNN_TSAN)
inline constexpr bool kTsan = true, kSanitized = true;
#elif defined(PACKRNN_ASAN)
inline constexpr bool kTsan = false, kSanitized = true;
#else
inline constexpr bool kTsan = false, kSanitized = false;
#endif

}  // namespace packrnn::tests
