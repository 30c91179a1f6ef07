#include "packrnn/runtime/context.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "packrnn/runtime/device_queue.hpp"
#include "packrnn/runtime/expects.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/host_memory.hpp"

namespace packrnn {
namespace {

constexpr std::size_t kMinBlock = std::size_t{64} << 10;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void check_device(Device device) {
  expects(device.index >= 0, "PACKRNN_DEVICE is \"{}\", but must be cpu, cuda or cuda:<index>",
          environment("PACKRNN_DEVICE"));
  if (device.type == DeviceType::cuda) {
    if (device.index >= gpu::device_count())
      throw Unsupported(
          fmt::format("layers cannot run on {}: {}", device.name(), Device::cuda_status()));
    return;
  }
  expects(device == Device::cpu(), "device is cpu with index {}, but there is only index 0",
          device.index);
}

std::string algorithm_of(std::string asked) {
  const bool given = !asked.empty();
  if (!given) asked = environment("PACKRNN_ALGORITHM");
  expects(asked.empty() || asked == "persistent" || asked == "cluster" || asked == "step",
          "{} is \"{}\", but must be persistent, cluster or step",
          given ? "algorithm" : "PACKRNN_ALGORITHM", asked);
  return asked;
}

int team_of(int threads, Device device) {
  expects(threads >= 0 && threads <= ThreadPool::kMaxThreads,
          "threads is {}, but must be 0 (as many as available) to {}", threads,
          ThreadPool::kMaxThreads);
  if (threads > 0) return threads;
  return device == Device::cpu() ? std::min(available_threads(), ThreadPool::kMaxThreads) : 1;
}

}  // namespace

const char* name_of(F32Math math) noexcept {
  switch (math) {
    case F32Math::exact:
      return "exact";
    case F32Math::tf32x3:
      return "tf32x3";
    case F32Math::tf32:
      return "tf32";
  }
  return "?";
}

F32Math default_f32_math() {
  const std::string asked = environment("PACKRNN_F32_MATH");
  if (asked.empty()) return F32Math::exact;
  for (const F32Math math : {F32Math::exact, F32Math::tf32x3, F32Math::tf32})
    if (asked == name_of(math)) return math;
  throw InvalidArgument(
      fmt::format("PACKRNN_F32_MATH is \"{}\", but must be exact, tf32x3 or tf32", asked));
}

Workspace::Workspace(Device device)
    : Workspace(
          device, [device](std::size_t bytes) { return Buffer::allocate(device, bytes); },
          nullptr) {}

Workspace::Workspace(Device device, std::function<Buffer(std::size_t)> allocate, gpu::Stream stream)
    : device_(device), allocate_(std::move(allocate)), stream_(stream) {}

Workspace::Scope::Scope(Workspace& workspace) noexcept
    : workspace_(workspace),
      block_(workspace.block_),
      used_(workspace.used_),
      depth_(++workspace.scopes_) {}

Workspace::Scope::~Scope() {
  Workspace& w = workspace_;
  give_back();
  if (--w.scopes_ > 0 || w.blocks_.size() <= 1) return;
  // Nothing is in use: one block of the same size, so that the same calls grow nothing next time.
  const std::size_t total = w.capacity();
  w.blocks_.clear();  // before, not after: never twice the memory
  try {
    w.add_block(total);
  } catch (...) {
    // Nobody is waiting for this memory; the next take() asks for what it needs and reports.
  }
}

void Workspace::Scope::give_back() noexcept {
  Workspace& w = workspace_;
  if (w.stream_ != nullptr)
    for (std::size_t i = block_; i < w.blocks_.size() && i <= w.block_; ++i)
      w.mark(i, i == block_ ? used_ : 0, i == w.block_ ? w.used_ : w.blocks_[i].size(), false);
  w.block_ = block_;
  w.used_ = used_;
}

void* Workspace::Scope::take_bytes(std::int64_t count, std::size_t element_size) {
  expects(count >= 0, "count is {}, but must not be negative", count);
  expects(depth_ == workspace_.scopes_, "scope {} took memory while scope {} inside it was alive",
          depth_, workspace_.scopes_);
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() - 1024;
  if (static_cast<std::uint64_t>(count) > kMost / element_size)
    throw OutOfMemory(fmt::format("out of memory: {} elements of {} bytes are more than 2^64 bytes",
                                  count, element_size));
  Workspace& w = workspace_;
  const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
  const std::size_t alignment = w.alignment();
  std::size_t room = (bytes + alignment - 1) / alignment * alignment;
  if (w.stream_ != nullptr) room += alignment;  // what runs over its end does not hit a neighbour
  if (w.block_ >= w.blocks_.size() || room > w.blocks_[w.block_].size() - w.used_) {
    const std::size_t next = w.blocks_.empty() ? 0 : w.block_ + 1;
    if (next >= w.blocks_.size() || w.blocks_[next].size() < room) {
      // Too small and unused: given back before a larger one is asked for.
      w.blocks_.resize(std::min(next, w.blocks_.size()));
      w.add_block(std::max(room, kMinBlock));
    }
    w.block_ = next;
    w.used_ = 0;
  }
  void* const data = static_cast<std::byte*>(w.blocks_[w.block_].data()) + w.used_;
  w.mark(w.block_, w.used_, w.used_ + bytes, true);
  w.used_ += room;
  return data;
}

std::size_t Workspace::alignment() const noexcept { return stream_ == nullptr ? kAlignment : 256; }

void Workspace::add_block(std::size_t bytes) {
  blocks_.push_back(allocate_(bytes));
  mark(blocks_.size() - 1, 0, bytes, false);
}

/// Tells a checker (tests/simt) what may be touched by work that is put on the stream from now on.
void Workspace::mark(std::size_t block, std::size_t begin, std::size_t end, bool usable) noexcept {
  if (stream_ != nullptr && begin < end)
    gpu::mark(static_cast<std::byte*>(blocks_[block].data()) + begin, end - begin, usable, stream_);
}

std::size_t Workspace::capacity() const noexcept {
  std::size_t bytes = 0;
  for (const Buffer& block : blocks_) bytes += block.size();
  return bytes;
}

void Workspace::release() {
  expects(scopes_ == 0, "the workspace is in use by {} scopes", scopes_);
  blocks_.clear();
  block_ = 0;
  used_ = 0;
}

struct Context::State {
  /// With the queue that it is beside, if it is a lane.
  State(Device where, ContextOptions& options, const DeviceQueue* beside = nullptr)
      : device(where),
        pool(team_of(options.threads, where), options.pin_threads),
        workspace(where),
        random(options.seed),
        f32_math(options.f32_math),
        algorithm(algorithm_of(std::move(options.algorithm))) {
    expects(options.stream == nullptr || device.type == DeviceType::cuda,
            "a stream was given, but the context is on {}", device);
    if (device.type == DeviceType::cuda)
      queue = beside ? std::make_shared<DeviceQueue>(beside)
                     : std::make_shared<DeviceQueue>(device.index, options.stream);
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { memory->close(); }

  Device device;
  std::shared_ptr<HostMemory> memory = std::make_shared<HostMemory>();  // of tensors on the CPU
  ThreadPool pool;
  Workspace workspace;  // the CPU's; a GPU's is its queue's
  Generator random;
  PlanCache plans;
  F32Math f32_math;
  std::string algorithm;
  std::shared_ptr<DeviceQueue> queue;  // on a GPU only
  std::deque<Context> lanes;           // references stay valid; they go before the queue
};

Context::Context(Device device, ContextOptions options) {
  check_device(device);
  state_ = std::make_unique<State>(device, options);
}

Context::Context(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Device Context::device() const noexcept { return state_->device; }
int Context::threads() const noexcept { return state_->pool.size(); }
ThreadPool& Context::pool() noexcept { return state_->pool; }
Generator& Context::random() noexcept { return state_->random; }
PlanCache& Context::plans() noexcept { return state_->plans; }
F32Math Context::f32_math() const noexcept { return state_->f32_math; }
const std::string& Context::algorithm() const noexcept { return state_->algorithm; }
std::string Context::explain() const { return state_->plans.explain(); }
DeviceQueue* Context::queue() const noexcept { return state_->queue.get(); }
std::shared_ptr<DeviceQueue> Context::shared_queue() const noexcept { return state_->queue; }

Workspace& Context::workspace() noexcept {
  return queue() ? queue()->workspace() : state_->workspace;
}

Context& Context::lane(std::size_t index) {
  expects(queue() != nullptr, "lane {} was asked of a context on {}", index, device());
  std::deque<Context>& lanes = state_->lanes;
  while (lanes.size() <= index) {
    ContextOptions options{
        .threads = 1, .seed = random().seed(), .f32_math = f32_math(), .algorithm = algorithm()};
    lanes.push_back(Context(std::make_unique<State>(device(), options, queue())));
  }
  return lanes[index];
}

gpu::Stream Context::stream() const noexcept { return queue() ? queue()->stream() : nullptr; }

void* Context::native_stream() const noexcept {
  return queue() ? gpu::native(queue()->stream()) : nullptr;
}

gpu::Products Context::products() {
  expects(queue() != nullptr, "products were asked of a context on {}", device());
  return queue()->products();
}

DeviceFault* Context::fault() const noexcept { return queue() ? queue()->fault() : nullptr; }

Tensor Context::empty(Shape shape, Dtype dtype) {
  const std::size_t bytes = Tensor::bytes_of(shape, dtype);
  auto storage = std::make_shared<Buffer>(queue() ? queue()->allocate(bytes)
                                                  : state_->memory->allocate(bytes));
  void* const data = storage->data();
  return Tensor::share(std::move(storage), data, shape, dtype);
}

Tensor Context::zeros(Shape shape, Dtype dtype) {
  if (queue() == nullptr) return Tensor::zeros(shape, dtype);
  Tensor tensor = empty(shape, dtype);
  if (tensor.elements() > 0) gpu::fill(tensor.span().raw(), 0, tensor.view().bytes(), stream());
  return tensor;
}

Tensor Context::to_device(const TensorView& view) {
  expects(view.defined(), "view is not defined");
  Tensor result = empty(view.shape(), view.dtype());
  copy(view, result.span());
  return result;
}

Tensor Context::to_host(const TensorView& view) {
  expects(view.defined(), "view is not defined");
  Tensor result = Tensor::empty(view.shape(), view.dtype());
  copy(view, result.span());
  return result;
}

void Context::copy(const TensorView& from, const TensorSpan& to) {
  expects(from.defined() && to.defined(), "{} is not defined", from.defined() ? "to" : "from");
  expects(from.dtype() == to.dtype(), "from is of {}, but to of {}", from.dtype(), to.dtype());
  expects(from.shape() == to.shape(), "from is {}, but to is {}", from.shape(), to.shape());
  expects(from.device() != to.device() || !overlap(from, to), "from and to overlap");
  const Device host = Device::cpu();
  const std::size_t bytes = from.bytes();
  if (from.device() == host && to.device() == host) {
    if (bytes > 0) std::memcpy(to.raw(), from.raw(), bytes);
    return;
  }
  expects(queue() != nullptr && (from.device() == device() || to.device() == device()),
          "a copy from {} to {} was asked of a context on {}", from.device(), to.device(),
          device());
  if (to.device() == host) return queue()->download(to.raw(), from.raw(), bytes);
  if (from.device() == host) return queue()->upload(to.raw(), from.raw(), bytes);
  if (bytes == 0) return;
  if (from.device() == to.device())
    return gpu::copy(to.raw(), from.raw(), bytes, gpu::Copy::on_device, stream());
  gpu::copy_peer(to.raw(), to.device().index, from.raw(), from.device().index, bytes, stream());
}

void Context::synchronize() {
  if (queue() != nullptr) queue()->synchronize();
}

void Context::wait_for(const Context& other) {
  if (queue() != nullptr && other.queue() != nullptr) queue()->wait_for(*other.queue());
}

}  // namespace packrnn
