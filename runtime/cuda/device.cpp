// Devices: how many there are, what they can do, and making one current. The runtime is linked
// statically and opens the driver itself, so this works, and says what is missing, on a machine
// that has no driver.
#include "packrnn/runtime/device.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn::gpu {
namespace {

struct Answer {
  cudaError_t error;
  int count;
};

/// Asked once: devices do not come and go while a process runs.
const Answer& answer() noexcept {
  static const Answer once = []() -> Answer {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    forget(error);
    return {error, error == cudaSuccess ? count : 0};
  }();
  return once;
}

template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess)
    throw Unsupported(fmt::format("the driver has no {}; install a newer one", name));
  return reinterpret_cast<Function*>(function);
}

/// The driver's functions that the runtime has no counterpart of.
struct Driver {
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*push)(CUcontext);
  CUresult (*pop)(CUcontext*);

  static const Driver& get() {
    static const Driver once{
        driver_function<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain"),
        driver_function<CUresult(CUcontext)>("cuCtxPushCurrent"),
        driver_function<CUresult(CUcontext*)>("cuCtxPopCurrent")};
    return once;
  }
};

std::string text_of(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

struct Opened {
  std::once_flag once;
  Properties properties;
  std::once_flag context_once;
  CUcontext context = nullptr;
  cudaMemPool_t pool = nullptr;
};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

Properties ask(int device) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, device), "cudaGetDeviceProperties");
  Properties result;
  result.name = p.name;
  result.uuid = text_of(p.uuid);
  result.major = p.major;
  result.minor = p.minor;
  result.multiprocessors = p.multiProcessorCount;
  result.memory = p.totalGlobalMem;
  result.shared_per_block = p.sharedMemPerBlockOptin;
  result.l2 = static_cast<std::size_t>(p.l2CacheSize);
  result.threads_per_multiprocessor = p.maxThreadsPerMultiProcessor;
  result.clock_khz = attribute(cudaDevAttrClockRate, device);
  result.cooperative = p.cooperativeLaunch != 0;
  result.clusters = p.clusterLaunch != 0;
  check(cudaDriverGetVersion(&result.driver), "cudaDriverGetVersion");
  if (p.major < 8)
    throw Unsupported(fmt::format(
        "cuda:{} is {} of compute capability {}.{}, but 8.0 is the least that packrnn runs on: use "
        "Device::cpu(), or another GPU (CUDA_VISIBLE_DEVICES)",
        device, p.name, p.major, p.minor));
  if (p.memoryPoolsSupported == 0)
    throw Unsupported(
        fmt::format("cuda:{} ({}) has no memory pools, as some virtual GPUs: packrnn needs them",
                    device, p.name));
  return result;
}

std::atomic<int> last_opened{0};

/// One per device, for ever: contexts are opened once.
Opened& opened(int device) {
  // Never destroyed: static objects may give memory back at the very end.
  static Opened* const all = new Opened[static_cast<std::size_t>(device_count())];
  if (device < 0 || device >= device_count())
    throw Unsupported(fmt::format("there is no cuda:{}: {}", device, Device::cuda_status()));
  Opened& one = all[device];
  std::call_once(one.once, [&] { one.properties = ask(device); });
  return one;
}

Opened& with_context(int device) {
  Opened& one = opened(device);
  std::call_once(one.context_once, [&] {
    const CUresult error = Driver::get().retain(&one.context, device);
    if (error != CUDA_SUCCESS) {
      const std::string what = fmt::format("opening cuda:{}", device);
      if (error == CUDA_ERROR_OUT_OF_MEMORY) fail(cudaErrorMemoryAllocation, what);
      fail(static_cast<cudaError_t>(error), what);  // they are numbered alike
    }
    check(cudaDeviceGetDefaultMemPool(&one.pool, device), "cudaDeviceGetDefaultMemPool");
    // Memory that was given back is kept for the next call instead of going back to the system at
    // each wait.
    std::uint64_t keep = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(one.pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "cudaMemPoolSetAttribute");
    last_opened = device;
  });
  return one;
}

}  // namespace

int device_count() noexcept { return answer().count; }

std::string finding() {
  const auto [error, count] = answer();
  if (count > 0) return fmt::format("CUDA: {} device{}", count, count == 1 ? "" : "s");
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "CUDA: no GPU on this machine";
  const char* what = cudaGetErrorString(error);
  if (error != cudaErrorInsufficientDriver) return fmt::format("CUDA: no usable device ({})", what);
  // One error code for "none" and "too old"; the version is 0 when there is none.
  int driver = 0;
  forget(cudaDriverGetVersion(&driver));
  if (driver == 0) return "CUDA: no driver on this machine";
  return fmt::format("CUDA: the driver is too old (it serves CUDA {}.{}, this build needs {}.{})",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
}

const Properties& properties(int device) { return opened(device).properties; }

int any_device() noexcept { return last_opened; }

cudaMemPool_t pool_of(int device) { return with_context(device).pool; }

Current::Current(int device) {
  const CUresult error = Driver::get().push(with_context(device).context);
  if (error != CUDA_SUCCESS)
    fail(static_cast<cudaError_t>(error), fmt::format("making cuda:{} current", device));
}

Current::~Current() {
  CUcontext popped = nullptr;
  Driver::get().pop(&popped);
}

void mark(void* /*data*/, std::size_t /*bytes*/, bool /*usable*/, Stream /*stream*/) noexcept {}

}  // namespace packrnn::gpu
