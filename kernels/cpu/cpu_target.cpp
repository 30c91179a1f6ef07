#include "packrnn/kernels/cpu_target.hpp"

#include <fmt/format.h>

#include "packrnn/kernels/cpu/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "packrnn/kernels/cpu/cpu_target.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace packrnn::kernels::HWY_NAMESPACE {
namespace {

std::string Describe() {
  return fmt::format(
      "{} ({}-bit vectors)", hwy::TargetName(HWY_TARGET),
      8 * hwy::HWY_NAMESPACE::MaxLanes(hwy::HWY_NAMESPACE::ScalableTag<std::uint8_t>()));
}

}  // namespace
}  // namespace packrnn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace packrnn::kernels {
namespace {
HWY_EXPORT(Describe);
}  // namespace

std::string cpu_target() { return HWY_DYNAMIC_DISPATCH(Describe)(); }

}  // namespace packrnn::kernels
#endif  // HWY_ONCE
