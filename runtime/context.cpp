#include "packrnn/runtime/context.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

constexpr std::size_t kMinBlock = std::size_t{64} << 10;

void check_device(Device device) {
  if (device.type == DeviceType::cuda)
    throw Unsupported(
        fmt::format("layers cannot run on {}: {}", device.name(), Device::cuda_status()));
  expects(device == Device::cpu(), "device is cpu with index {}, but there is only index 0",
          device.index);
}

int team_of(int threads) {
  expects(threads >= 0 && threads <= ThreadPool::kMaxThreads,
          "threads is {}, but must be 0 (as many as available) to {}", threads,
          ThreadPool::kMaxThreads);
  return threads == 0 ? std::min(available_threads(), ThreadPool::kMaxThreads) : threads;
}

}  // namespace

Workspace::Scope::Scope(Workspace& workspace) noexcept
    : workspace_(workspace),
      block_(workspace.block_),
      used_(workspace.used_),
      depth_(++workspace.scopes_) {}

Workspace::Scope::~Scope() {
  Workspace& w = workspace_;
  w.block_ = block_;
  w.used_ = used_;
  if (--w.scopes_ > 0 || w.blocks_.size() <= 1) return;
  // Nothing is in use: one block of the same size, so that the same calls grow nothing next time.
  const std::size_t total = w.capacity();
  w.blocks_.clear();  // before, not after: never twice the memory
  try {
    w.blocks_.push_back(Buffer::allocate(w.device_, total));
  } catch (...) {
    // Nobody is waiting for this memory; the next take() asks for what it needs and reports.
  }
}

void* Workspace::Scope::take_bytes(std::int64_t count, std::size_t element_size) {
  expects(count >= 0, "count is {}, but must not be negative", count);
  expects(depth_ == workspace_.scopes_, "scope {} took memory while scope {} inside it was alive",
          depth_, workspace_.scopes_);
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() - kAlignment;
  if (static_cast<std::uint64_t>(count) > kMost / element_size)
    throw OutOfMemory(fmt::format("out of memory: {} elements of {} bytes are more than 2^64 bytes",
                                  count, element_size));
  Workspace& w = workspace_;
  const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
  const std::size_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (w.block_ >= w.blocks_.size() || room > w.blocks_[w.block_].size() - w.used_) {
    const std::size_t next = w.blocks_.empty() ? 0 : w.block_ + 1;
    if (next >= w.blocks_.size() || w.blocks_[next].size() < room) {
      // Too small and unused: given back before a larger one is asked for.
      w.blocks_.resize(std::min(next, w.blocks_.size()));
      w.blocks_.push_back(Buffer::allocate(w.device_, std::max(room, kMinBlock)));
    }
    w.block_ = next;
    w.used_ = 0;
  }
  void* const data = static_cast<std::byte*>(w.blocks_[w.block_].data()) + w.used_;
  w.used_ += room;
  return data;
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
  State(Device where, const ContextOptions& options)
      : device(where),
        pool(team_of(options.threads), options.pin_threads),
        workspace(where),
        random(options.seed) {}

  Device device;
  ThreadPool pool;
  Workspace workspace;
  Generator random;
  PlanCache plans;
};

Context::Context(Device device, ContextOptions options) {
  check_device(device);
  state_ = std::make_unique<State>(device, options);
}

Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Device Context::device() const noexcept { return state_->device; }
int Context::threads() const noexcept { return state_->pool.size(); }
ThreadPool& Context::pool() noexcept { return state_->pool; }
Workspace& Context::workspace() noexcept { return state_->workspace; }
Generator& Context::random() noexcept { return state_->random; }
PlanCache& Context::plans() noexcept { return state_->plans; }
std::string Context::explain() const { return state_->plans.explain(); }

}  // namespace packrnn
