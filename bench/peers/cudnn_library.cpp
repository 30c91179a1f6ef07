#include "bench/peers/cudnn_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <utility>

namespace packrnn::bench {

bool CudnnLibrary::load(std::string& reason) {
  // For tests, and for installations that the loader does not look into.
  const char* chosen = std::getenv("PACKRNN_CUDNN_LIBRARY");
  const std::string name = chosen ? chosen : fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    reason = why ? why : name + " cannot be loaded";
    return false;
  }
  const char* missing = nullptr;
  const auto find = [&](auto& pointer, const char* symbol) {
    pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(dlsym(handle, symbol));
    if (!pointer) missing = symbol;
  };
#define PACKRNN_CUDNN_FIND(name) find(name, #name)
  PACKRNN_CUDNN_CALLS(PACKRNN_CUDNN_FIND);
#undef PACKRNN_CUDNN_FIND
  if (missing) {
    reason = fmt::format("{} has no {}", name, missing);
    return false;
  }
  if (cudnnGetVersion() / 10000 != CUDNN_MAJOR) {
    reason =
        fmt::format("version {} was found, this build is for {}", cudnnGetVersion(), CUDNN_MAJOR);
    return false;
  }
  return true;
}

void CudnnLibrary::check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> details{};
  cudnnGetLastErrorString(details.data(), details.size());
  std::string text = fmt::format("{}: {}", call, cudnnGetErrorString(status));
  if (details[0] != '\0') text += fmt::format(" ({})", details.data());
  throw CudnnRefusal{std::move(text)};
}

}  // namespace packrnn::bench
