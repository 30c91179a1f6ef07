// Scheduler, barriers and warp operations of the simt engine, and its reports.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <sstream>
#include <string_view>

#include "tests/simt/machine.hpp"

namespace packrnn::simt {

constinit thread_local Thread* self = nullptr;
constinit thread_local Machine* active = nullptr;

namespace {

using State = Fiber::State;

/// Behind shared memory, where nothing else watches its end.
constexpr std::size_t kGuardBytes = kSanitized ? 0 : 64;
constexpr unsigned char kGuard = 0xA5;

const char* environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "";
}

template <class T>
void read_number(const char* variable, T& value) {
  const std::string text = environment(variable);
  if (text.empty()) return;
  std::istringstream stream(text);
  if (!(stream >> value) || !stream.eof())
    throw Error(std::string("simt: ") + variable + " is no number: " + text);
}

constexpr std::array<const char*, 5> kOrderNames{"forward", "reverse", "random", "priority",
                                                 "by_seed"};

Options options_of_environment() {
  Options o;
  read_number("PACKRNN_SIMT_SEED", o.seed);
  read_number("PACKRNN_SIMT_PREEMPT", o.preempt_permille);
  read_number("PACKRNN_SIMT_RESIDENT", o.resident_blocks);
  read_number("PACKRNN_SIMT_DEADLINE", o.deadline_s);
  const std::string_view order = environment("PACKRNN_SIMT_ORDER");
  if (!order.empty()) {
    const auto* found = std::find(kOrderNames.begin(), kOrderNames.end(), order);
    if (found == kOrderNames.end())
      throw Error("simt: PACKRNN_SIMT_ORDER is unknown: " + std::string(order));
    o.order = static_cast<Order>(found - kOrderNames.begin());
  }
  return o;
}

Options resolved(Options o) {
  if (o.preempt_permille < 0)
    o.preempt_permille = o.order == Order::by_seed && o.seed % 4 >= 2 ? 50 : 0;
  if (o.order == Order::by_seed) o.order = o.seed % 2 == 1 ? Order::random : Order::priority;
  if (o.stack_bytes == 0) o.stack_bytes = (kSanitized ? 256 : 64) * std::size_t{1024};
  if (o.deadline_s == 0) o.deadline_s = kSanitized ? 600 : 120;
  return o;
}

std::uint64_t count(const std::array<unsigned, 3>& v) { return std::uint64_t{v[0]} * v[1] * v[2]; }

std::string text(unsigned x, unsigned y, unsigned z) {
  return '(' + std::to_string(x) + ',' + std::to_string(y) + ',' + std::to_string(z) + ')';
}
std::string text(const uint3& v) { return text(v.x, v.y, v.z); }
std::string text(const std::array<unsigned, 3>& v) { return text(v[0], v[1], v[2]); }
std::string text(Site site) { return std::string(site.file) + ':' + std::to_string(site.line); }

bool same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

bool lower(const Fiber* a, const Fiber* b) { return a->priority < b->priority; }

}  // namespace

Options& options() {
  static thread_local Options o = options_of_environment();
  return o;
}

Stats& stats() {
  static thread_local Stats s;
  return s;
}

void poison(void* data, std::size_t bytes) {
  if (!options().poison) {
    std::memset(data, 0, bytes);
    return;
  }
  constexpr std::uint64_t kPattern = kPoison * 0x0001000100010001U;
  auto* p = static_cast<unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, p += 8) std::memcpy(p, &kPattern, 8);
  std::memcpy(p, &kPattern, bytes);
}

void check(const char* name, const gpu::LaunchShape& shape, const gpu::Properties& properties) {
  const auto fault = [&](const std::string& why) {
    throw Error("simt: kernel '" + std::string(name) + "' cannot start: " + why + " (grid " +
                text(shape.grid) + " block " + text(shape.block) + " shared " +
                std::to_string(shape.shared) + " cluster " + std::to_string(shape.cluster) + ")");
  };
  const std::uint64_t threads = count(shape.block);
  if (count(shape.grid) == 0 || threads == 0) fault("no blocks or no threads");
  if (shape.grid[0] > 0x7FFFFFFFU || shape.grid[1] > 65535 || shape.grid[2] > 65535)
    fault("the grid is larger than 2147483647 x 65535 x 65535");
  if (threads > 1024 || shape.block[2] > 64)
    fault("the block is larger than 1024 threads, or 64 in z");
  if (shape.shared > properties.shared_per_block)
    fault("more shared memory than the " + std::to_string(properties.shared_per_block) +
          " bytes that a block of this device can have");
  if (shape.cluster == 0 || shape.cluster > 16 || shape.grid[0] % std::max(1U, shape.cluster) != 0)
    fault("clusters have 1 to 16 blocks and fill the grid in x");
  if (shape.cluster > 1 && !properties.clusters) fault("this device has no clusters");
  const auto block = static_cast<int>(threads);
  if (shape.cooperative) {
    if (!properties.cooperative) fault("this device has no cooperative launch");
    const auto most = static_cast<std::uint64_t>(properties.multiprocessors) *
                      static_cast<unsigned>(resident_blocks(properties, block, shape.shared));
    if (count(shape.grid) > most)
      fault("a cooperative launch of more than the " + std::to_string(most) +
            " blocks that can be resident at once");
  }
  if (shape.cluster > 1 &&
      resident_clusters(properties, block, shape.shared, static_cast<int>(shape.cluster)) == 0)
    fault("no such cluster fits this device");
}

int resident_blocks(const gpu::Properties& properties, int block, std::size_t shared) {
  // A multiprocessor has 1 KiB more than a block can ask for, and keeps 1 KiB for each.
  constexpr std::size_t kReserved = 1024;
  if (block <= 0 || shared > properties.shared_per_block) return 0;
  const int by_threads = properties.threads_per_multiprocessor / ((block + 31) / 32 * 32);
  const auto by_shared =
      static_cast<int>((properties.shared_per_block + kReserved) / (shared + kReserved));
  return std::min({by_threads, by_shared, 32});
}

int resident_clusters(const gpu::Properties& properties, int block, std::size_t shared,
                      int cluster) {
  // A cluster lies within one of the groups of multiprocessors of which a device is made.
  constexpr int kGroup = 16;
  if (!properties.clusters || cluster < 1 || cluster > 16) return 0;
  const int each = resident_blocks(properties, block, shared);
  const int groups = properties.multiprocessors / kGroup,
            rest = properties.multiprocessors % kGroup;
  return groups * (kGroup * each / cluster) + rest * each / cluster;
}

void run(const char* name, const gpu::LaunchShape& shape, const gpu::Properties& properties,
         const std::function<void()>& body) {
  static thread_local Machine machine;
  machine.run(name, shape, properties, body);
}

// ---- reports ----------------------------------------------------------------------------------

std::string Machine::title() const {
  std::string s =
      std::string("kernel '") + name + "' grid " + text(shape.grid) + " block " + text(shape.block);
  if (shape.shared != 0) s += " shared " + std::to_string(shape.shared);
  if (shape.cooperative) s += " cooperative";
  if (shape.cluster > 1) s += " cluster " + std::to_string(shape.cluster);
  s += " seed " + std::to_string(settings.seed) + ' ' +
       kOrderNames[static_cast<std::size_t>(settings.order)];
  if (settings.preempt_permille != 0) s += " preempt " + std::to_string(settings.preempt_permille);
  return s;
}

/// Who is where: a line for each block and place.
std::string Machine::threads() const {
  constexpr int kMostLines = 16;
  std::ostringstream out;
  int lines = 0;
  for (const Cluster* cluster : resident_)
    for (const Block* block : cluster->blocks) {
      std::map<std::string, std::vector<unsigned>> places;
      for (const Fiber& f : block->fibers) {
        std::ostringstream place;
        if (f.state == State::done) {
          place << "returned";
        } else if (f.what == nullptr) {
          place << "not started";
        } else {
          place << (f.state == State::ready ? "at " : "waiting in ") << f.what;
          if (f.mask != 0) place << " mask 0x" << std::hex << f.mask << std::dec;
          place << " at " << text(f.site);
        }
        places[place.str()].push_back(f.linear);
      }
      for (const auto& [place, who] : places) {
        if (++lines > kMostLines) return out.str() + "\n  ...";
        out << "\n  block " << text(block->id) << ": ";
        if (who.size() == 1)
          out << "thread " << who.front() << ' ' << place;
        else
          out << who.size() << " threads of " << who.front() << ".." << who.back() << ' ' << place;
      }
    }
  if (!waiting_.empty())
    out << "\n  " << waiting_.size() * shape.cluster
        << " blocks of this launch are not resident: waiting for them needs a cooperative launch";
  return out.str();
}

void Machine::report(const std::string& why) const {
  throw Error("simt: " + why + " in " + title() + threads());
}

void fail(const char* why, Site site) {
  const Quiet quiet;
  throw Error("simt: block " + text(self->block) + " thread " + text(self->thread) + ' ' + why +
              " at " + text(site) + " in " + active->title());
}

// ---- scheduling -------------------------------------------------------------------------------

/// Ends a launch, whether it went well or not.
struct Machine::Scope {
  Machine& machine;
  explicit Scope(Machine& m) : machine(m) {
    active = &machine;
    machine.running = machine.name;
  }
  ~Scope() {
    machine.running = nullptr;
    machine.reset();
    active = nullptr;
    self = nullptr;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

Machine::Machine() { watch(*this); }

Machine::~Machine() {
  unwatch(*this);
  for (auto& block : blocks_) {
    std::free(block->dynamic.data);
    for (SharedMemory& s : block->statics) std::free(s.data);
  }
#if defined(PACKRNN_SIMT_TSAN)
  if (proxy_ != nullptr) __tsan_destroy_fiber(proxy_);
#endif
}

std::uint64_t Machine::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

void Machine::make_ready(Fiber& fiber, State state) {
  fiber.state = state;
  if (settings.order == Order::forward || settings.order == Order::reverse) {
    fifo_.push_back(&fiber);
    return;
  }
  bag_.push_back(&fiber);
  if (settings.order != Order::priority) return;
  // Warps have random priorities, changed now and then; who polls gives way to everyone.
  std::uint64_t& warp = fiber.block_state->warps[fiber.warp].priority;
  if (warp == 0 || random() % 256 == 0) warp = (2 + (random() >> 33)) << 32;
  fiber.priority = state == State::spinning ? --low_priority_ : warp | (random() & 0xFFFFFFFFU);
  std::push_heap(bag_.begin(), bag_.end(), lower);
}

Fiber* Machine::next() {
  Fiber* fiber = nullptr;
  if (!fifo_.empty()) {
    fiber = fifo_.front();
    fifo_.pop_front();
    return fiber;
  }
  if (bag_.empty()) return nullptr;
  if (settings.order == Order::priority)
    std::pop_heap(bag_.begin(), bag_.end(), lower);
  else
    std::swap(bag_[random() % bag_.size()], bag_.back());
  fiber = bag_.back();
  bag_.pop_back();
  return fiber;
}

void Machine::wait(State state, const char* what, Site site, std::uint32_t mask) {
  Fiber& fiber = me();
  fiber.what = what;
  fiber.site = site;
  fiber.mask = mask;
  if (state == State::blocked)
    fiber.state = state;
  else
    make_ready(fiber, state);
  yield();
}

void Machine::yield() {
  Fiber& fiber = me();
  // Straight to the next one, unless the scheduler has something to do.
  const std::uint64_t n = switches.load(std::memory_order_relaxed) + 1;
  switches.store(n, std::memory_order_relaxed);
  Fiber* other = attention_ || n % 4096 == 0 ? nullptr : next();
  if (other != &fiber) {
    self = other;
    current.store(other, std::memory_order_relaxed);
    switch_context(*fiber.context, other != nullptr ? *other->context : main);
  }
}

void Machine::enter(Fiber& fiber) {
  self = &fiber;
  current.store(&fiber, std::memory_order_relaxed);
  switches.store(switches.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  switch_context(main, *fiber.context);
  self = nullptr;
}

void Machine::fiber_main() {
  Context& context = *me().context;
  entered(context);
  for (;;) {
    Machine& machine = *active;
    machine.run_thread();
    Fiber* other = machine.attention_ ? nullptr : machine.next();
    self = other;
    machine.current.store(other, std::memory_order_relaxed);
    next_round(context, other != nullptr ? *other->context : machine.main);
  }
}

void Machine::run_thread() {
  tsan_acquire(&start_token);
  try {
    (*body)();
    const Quiet quiet;
    thread_done(me());
  } catch (...) {
    const Quiet quiet;
    if (!error) error = std::current_exception();
    attention_ = true;
  }
  me().state = State::done;
  tsan_release(&end_token);
}

void Machine::thread_done(Fiber& fiber) {
  Block& block = *fiber.block_state;
  if (!fiber.copies.empty())
    fail("returned before it waited for its asynchronous copies", fiber.site);
  if (fiber.cluster_arrived) fail("returned between cluster_arrive and cluster_wait", fiber.site);
  --block.live;
  --block.cluster->live;
  progress();
  Warp& warp = block.warps[fiber.warp];
  warp.live &= ~(1U << fiber.lane);
  for (std::size_t i = 0; i < warp.operations.size();) {
    const WarpOperation& op = *warp.operations[i];
    if (op.arrived != (op.mask & warp.live)) {
      ++i;
      continue;
    }
    if (settings.strict_exit)
      report("a warp operation completes only because lanes of its mask have returned,");
    finish_operation(warp, i);
  }
  Barrier& barrier = block.barriers[0];
  if (block.live != 0 && barrier.expected == 0 && barrier.count() == block.live)
    complete(barrier, true);
  Cluster& cluster = *block.cluster;
  if (cluster.live != 0 && cluster.arrived == cluster.live) complete(cluster);
  if (block.live == 0) {
    ++finished_blocks_;
    attention_ = true;
  }
}

void Machine::check_deadline() const {
  if (settings.deadline_s > 0 && Clock::now() > deadline_)
    report("out of time, after " + std::to_string(settings.deadline_s) + " s,");
}

void Machine::run(const char* launch_name, const gpu::LaunchShape& launch_shape,
                  const gpu::Properties& properties, const std::function<void()>& launch_body) {
  const Quiet quiet;
  if (active != nullptr) throw Error("simt: a kernel cannot launch another");
  check(launch_name, launch_shape, properties);
  name = launch_name;
  shape = launch_shape;
  shared_limit = properties.shared_per_block;
  body = &launch_body;
  settings = resolved(options());
  random_state_ = settings.seed * 0x9E3779B97F4A7C15U + 0x1234567;
  if (random_state_ == 0) random_state_ = 1;
  low_priority_ = std::uint64_t{1} << 32;
  const auto now = Clock::now();
  const double seconds = settings.deadline_s;
  deadline_ = now + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(std::max(0.0, std::min(seconds, 1e8))));
  started_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  deadline_ms = seconds > 0 ? static_cast<std::int64_t>(std::min(seconds, 1e8) * 1000) : -1;
  adopt_thread(main);
  ++stats().launches;

  const std::uint64_t clusters = count(shape.grid) / shape.cluster;
  waiting_.resize(clusters);
  for (std::uint64_t i = 0; i < clusters; ++i) waiting_[i] = clusters - 1 - i;
  if (settings.order == Order::reverse) std::reverse(waiting_.begin(), waiting_.end());
  if (settings.order == Order::random || settings.order == Order::priority)
    for (std::uint64_t i = clusters; i > 1; --i) std::swap(waiting_[i - 1], waiting_[random() % i]);
  const bool all = shape.cooperative || settings.resident_blocks == 0;
  resident_limit_ = all ? clusters : (settings.resident_blocks + shape.cluster - 1) / shape.cluster;

  const Scope scope(*this);
  schedule();
  tsan_acquire(&end_token);
}

void Machine::schedule() {
  for (;;) {
    admit();
    if (resident_.empty()) return;
    attention_ = !stores.empty();
    if (!stores.empty() && (ready_count() == 0 || random() % 8 == 0)) {
      deliver();
      continue;
    }
    Fiber* fiber = next();
    if (fiber == nullptr) report("deadlock: no thread can go on");
    enter(*fiber);
    if (error) {
      tsan_acquire(&end_token);
      std::rethrow_exception(error);
    }
    check_deadline();
    if (finished_blocks_ != 0) reap();
  }
}

void Machine::admit() {
  while (!waiting_.empty() && resident_.size() < resident_limit_) {
    if (free_clusters_.empty()) {
      clusters_.push_back(std::make_unique<Cluster>());
      free_clusters_.push_back(clusters_.back().get());
    }
    Cluster& cluster = *free_clusters_.back();
    free_clusters_.pop_back();
    resident_.push_back(&cluster);
    const std::uint64_t first = waiting_.back() * shape.cluster;
    waiting_.pop_back();
    for (unsigned i = 0; i < shape.cluster; ++i) start_block(first + i, cluster);
  }
}

SharedMemory Machine::allocate_shared(SharedMemory memory, std::size_t bytes,
                                      std::size_t alignment) {
  // A sanitizer wants a new allocation with its own ends for every block.
  if (kSanitized || memory.capacity < bytes) {
    std::free(memory.data);
    memory.data = nullptr;
    void* data = nullptr;
    if (posix_memalign(&data, std::max<std::size_t>(alignment, 16), bytes + kGuardBytes) != 0)
      throw std::bad_alloc();
    memory.data = static_cast<char*>(data);
    memory.capacity = bytes;
  }
  memory.bytes = bytes;
  poison(memory.data, bytes);
  if (kGuardBytes != 0) std::memset(memory.data + bytes, kGuard, kGuardBytes);
  return memory;
}

void Machine::start_block(std::uint64_t index, Cluster& cluster) {
  if (free_blocks_.empty()) {
    blocks_.push_back(std::make_unique<Block>());
    free_blocks_.push_back(blocks_.back().get());
  }
  Block& block = *free_blocks_.back();
  free_blocks_.pop_back();
  cluster.blocks.push_back(&block);

  const auto n = static_cast<unsigned>(count(shape.block));
  block.index = index;
  block.id = {static_cast<unsigned>(index % shape.grid[0]),
              static_cast<unsigned>(index / shape.grid[0] % shape.grid[1]),
              static_cast<unsigned>(index / shape.grid[0] / shape.grid[1])};
  block.rank = static_cast<unsigned>(cluster.blocks.size() - 1);
  block.cluster = &cluster;
  block.retired = false;
  block.dynamic.bytes = 0;
  if (shape.shared != 0) block.dynamic = allocate_shared(block.dynamic, shape.shared, 128);
  block.warps.resize((n + 31) / 32);
  if (block.fibers.size() != n) block.fibers.resize(n);
  uint3 thread{0, 0, 0};
  for (unsigned i = 0; i < n; ++i) {
    Fiber& f = block.fibers[i];
    f.thread = thread;
    f.block = block.id;
    f.block_size = {shape.block[0], shape.block[1], shape.block[2]};
    f.grid_size = {shape.grid[0], shape.grid[1], shape.grid[2]};
    f.linear = i;
    f.lane = i % 32;
    f.warp = i / 32;
    f.shared = block.dynamic.data;
    f.block_state = &block;
    f.what = nullptr;
    f.site = {"", 0};
    f.mask = 0;
    f.polls = 0;
    f.polled = false;
    f.arrived_at = 0;
    f.cluster_arrived = false;
    f.cluster_phase = 0;
    f.open_group = f.complete_group = 0;
    f.context = fibers_.take(settings.stack_bytes);
    block.warps[f.warp].live |= 1U << f.lane;
    ++block.live;
    ++cluster.live;
#if defined(PACKRNN_SIMT_TSAN)
    __tsan_set_fiber_name(f.context->tsan,
                          ("block " + text(f.block) + " thread " + text(f.thread)).c_str());
#endif
    if (++thread.x == shape.block[0]) {
      thread.x = 0;
      if (++thread.y == shape.block[1]) {
        thread.y = 0;
        ++thread.z;
      }
    }
  }
  for (unsigned i = 0; i < n; ++i)
    make_ready(block.fibers[settings.order == Order::reverse ? n - 1 - i : i]);
  tsan_release(&start_token);
  stats().threads += n;
  ++stats().blocks;
}

/// After threads have returned: what became of their blocks.
void Machine::reap() {
  finished_blocks_ = 0;
  for (std::size_t i = 0; i < resident_.size();) {
    Cluster& cluster = *resident_[i];
    for (Block* block : cluster.blocks)
      if (block->live == 0 && !block->retired) retire(*block);
    if (cluster.live != 0) {
      ++i;
      continue;
    }
    recycle(cluster);
    resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

/// Its shared memory is gone, for the rest of its cluster too.
void Machine::retire(Block& block) {
  block.retired = true;
  for (const AsyncStore& store : stores)
    if (store.block == &block)
      report("block " + text(block.id) +
             " returned while an asynchronous store to its shared memory was under way,");
  const auto end = [&](SharedMemory& memory) {
    if (memory.bytes == 0) return;
    const char* guard = memory.data + memory.bytes;
    if (std::any_of(guard, guard + kGuardBytes,
                    [](char c) { return static_cast<unsigned char>(c) != kGuard; }))
      report("block " + text(block.id) + " wrote behind the end of its " +
             (memory.key == nullptr ? "dynamic" : "static") + " shared memory,");
    if (shape.cluster == 1) return;
    poison(memory.data, memory.bytes);
#if defined(PACKRNN_ASAN)
    __asan_poison_memory_region(memory.data, memory.bytes);
#endif
  };
  end(block.dynamic);
  for (SharedMemory& memory : block.statics) end(memory);
}

/// Back to the pools; also what a report left in the middle of something.
void Machine::recycle(Cluster& cluster) {
  for (Block* block : cluster.blocks) {
    for (Fiber& f : block->fibers) {
      if (f.context == nullptr) continue;
      // One that never ran still stands where the last thread left it.
      fibers_.give_back(f.context, f.state != State::done && f.what != nullptr);
      f.context = nullptr;
      f.copies.clear();
    }
    for (Warp& warp : block->warps) {
      warp.live = 0;
      warp.priority = 0;
      warp.operations.clear();
    }
    for (Barrier& barrier : block->barriers) {
      barrier.waiting.clear();
      barrier.arrived.clear();
      barrier.phase = barrier.expected = 0;
      barrier.divergent = barrier.polled = false;
    }
    if (kSanitized) {
      std::free(block->dynamic.data);
      block->dynamic = {};
    }
    for (SharedMemory& memory : block->statics) std::free(memory.data);
    block->statics.clear();
    block->transactions.clear();
    block->live = 0;
    free_blocks_.push_back(block);
  }
  cluster.blocks.clear();
  cluster.waiting.clear();
  cluster.live = cluster.arrived = cluster.phase = 0;
  free_clusters_.push_back(&cluster);
}

void Machine::reset() {
  for (Cluster* cluster : resident_) recycle(*cluster);
  resident_.clear();
  waiting_.clear();
  fifo_.clear();
  bag_.clear();
  stores.clear();
  error = nullptr;
  attention_ = false;
  finished_blocks_ = 0;
  spins = 0;
  current = nullptr;
  free_operations.clear();
  for (auto& operation : operations_) {
    operation->inside = 0;
    free_operations.push_back(operation.get());
  }
}

// ---- barriers ---------------------------------------------------------------------------------

void Machine::complete(Barrier& barrier, bool by_exit) {
  if (by_exit && settings.strict_exit)
    report("a barrier completes only because threads have returned,");
  if (barrier.divergent && settings.strict_barrier)
    report("divergent barrier: threads of one block meet from different lines");
  ++stats().barriers;
  if (!barrier.polled) progress();
  ++barrier.phase;
  const auto bit = static_cast<unsigned>(&barrier - me().block_state->barriers.data());
  for (Fiber* fiber : barrier.arrived)
    fiber->arrived_at = static_cast<std::uint16_t>(fiber->arrived_at & ~(1U << bit));
  barrier.arrived.clear();
  for (Fiber* fiber : barrier.waiting) make_ready(*fiber);
  barrier.waiting.clear();
  barrier.expected = 0;
  barrier.divergent = barrier.polled = false;
}

void block_barrier(unsigned id, unsigned threads, bool wait, const char* what, Site site) {
  const Quiet quiet;
  Machine& machine = *active;
  Fiber& fiber = me();
  Block& block = *fiber.block_state;
  if (id >= block.barriers.size()) fail("uses a barrier above 15", site);
  if (threads % 32 != 0) fail("uses a barrier with a count that is no multiple of 32", site);
  if (threads > block.fibers.size() + 31)
    fail("uses a barrier with a count above the threads of its block", site);
  Barrier& barrier = block.barriers[id];
  if (barrier.count() == 0)
    barrier.expected = threads;
  else if (barrier.expected != threads)
    fail("uses a barrier with another count than the threads already there", site);
  if ((fiber.arrived_at >> id & 1U) != 0) fail("comes to a barrier twice in one phase", site);
  if (id == 0 && !barrier.waiting.empty() && !same(barrier.waiting.front()->site, site))
    barrier.divergent = true;
  barrier.polled |= fiber.polled;
  fiber.polled = false;
  fiber.polls = 0;
  fiber.what = what;
  fiber.site = site;
  fiber.mask = 0;
  const unsigned phase = barrier.phase;
  barrier.tokens.release(phase);
  if (wait) {
    barrier.waiting.push_back(&fiber);
    fiber.state = State::blocked;
  } else {
    barrier.arrived.push_back(&fiber);
    fiber.arrived_at = static_cast<std::uint16_t>(fiber.arrived_at | 1U << id);
  }
  // The last one queues as well: no thread is favoured.
  if (barrier.count() == (threads != 0 ? threads : block.live)) machine.complete(barrier, false);
  if (!wait) return;
  // complete() may have made it ready already.
  machine.yield();
  barrier.tokens.acquire(phase);
}

void Machine::complete(Cluster& cluster) {
  ++stats().barriers;
  progress();
  cluster.arrived = 0;
  ++cluster.phase;
  for (Fiber* fiber : cluster.waiting) make_ready(*fiber);
  cluster.waiting.clear();
}

void cluster_arrive(Site site) {
  const Quiet quiet;
  Fiber& fiber = me();
  Cluster& cluster = *fiber.block_state->cluster;
  if (fiber.cluster_arrived) fail("calls cluster_arrive twice without cluster_wait", site);
  fiber.cluster_arrived = true;
  fiber.cluster_phase = cluster.phase;
  fiber.polled = false;
  fiber.site = site;
  cluster.tokens.release(cluster.phase);
  if (++cluster.arrived == cluster.live) active->complete(cluster);
}

void cluster_wait(Site site) {
  const Quiet quiet;
  Fiber& fiber = me();
  Cluster& cluster = *fiber.block_state->cluster;
  if (!fiber.cluster_arrived) fail("calls cluster_wait without cluster_arrive", site);
  if (cluster.phase == fiber.cluster_phase) {
    cluster.waiting.push_back(&fiber);
    active->wait(State::blocked, "cluster_wait", site);
  }
  fiber.cluster_arrived = false;
  cluster.tokens.acquire(fiber.cluster_phase);
}

unsigned cluster_rank() { return me().block_state->rank; }
unsigned cluster_size() { return active->shape.cluster; }
unsigned cluster_id() { return self->block.x / active->shape.cluster; }

void fence() {
  tsan_acquire(&active->fence_token);
  tsan_release(&active->fence_token);
}

// ---- polling ----------------------------------------------------------------------------------

void backoff(Site site) {
  const Quiet quiet;
  Machine& machine = *active;
  Fiber& fiber = me();
  fiber.polls = 0;
  fiber.polled = true;
  // A round lets every thread that can go on do so once.
  constexpr std::uint64_t kPatience = 50, kRoundNs = 100'000'000;
  const std::uint64_t round = 1 + machine.ready_count();
  if (++machine.spins > machine.settings.spin_limit * round) {
    fiber.what = "a spin";
    fiber.site = site;
    fiber.state = State::spinning;
    machine.report("livelock: all that is left is polling that nothing will end,");
  }
  machine.clock_ns += machine.spins > kPatience * round ? kRoundNs / round : 10;
  machine.wait(State::spinning, "a spin", site);
}

void before_access(const void* address, std::size_t alignment, Site site) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0)
    fail("accesses a misaligned address", site);
  me().site = site;
  Machine& machine = *active;
  if (machine.settings.preempt_permille == 0 ||
      machine.random() % 1000 >= static_cast<std::uint64_t>(machine.settings.preempt_permille))
    return;
  const Quiet quiet;
  machine.wait(State::ready, "an access", site);
}

void after_load() {
  // Kernels back off when they poll; this is for those that forgot.
  constexpr unsigned kMany = 64;
  if (++me().polls >= kMany) backoff(me().site);
}

void after_store(bool changed) {
  if (changed)
    active->progress();
  else
    after_load();
}

std::uint64_t now_ns() {
  Machine& machine = *active;
  machine.clock_ns += 1;
  return machine.clock_ns + machine.switches.load(std::memory_order_relaxed) * 10;
}

// ---- shared memory ----------------------------------------------------------------------------

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
  Block& block = *me().block_state;
  std::size_t total = active->shape.shared;
  for (const SharedMemory& memory : block.statics) {
    if (memory.key == key) return memory.data;
    total += memory.bytes;
  }
  const Quiet quiet;
  constexpr std::size_t kMostStatic = 48 * 1024;
  const Site site{"its declaration", 0};
  if (total - active->shape.shared + bytes > kMostStatic)
    fail("declares more than 48 KiB of static shared memory", site);
  if (total + bytes > active->shared_limit)
    fail("has more static and dynamic shared memory than its device", site);
  SharedMemory memory = active->allocate_shared({}, bytes, alignment);
  memory.key = key;
  block.statics.push_back(memory);
  return memory.data;
}

void* map_shared(void* local, unsigned rank, std::size_t alignment, Site site) {
  const Block& mine = *me().block_state;
  if (reinterpret_cast<std::uintptr_t>(local) % alignment != 0)
    fail("maps a misaligned shared address", site);
  if (rank >= active->shape.cluster) fail("maps shared memory of a rank outside its cluster", site);
  const Block& other = *mine.cluster->blocks[rank];
  if (other.live == 0) fail("maps shared memory of a block that has returned", site);
  const auto* p = static_cast<const char*>(local);
  if (mine.dynamic.holds(p)) return other.dynamic.data + (p - mine.dynamic.data);
  for (const SharedMemory& memory : mine.statics) {
    if (!memory.holds(p)) continue;
    for (const SharedMemory& theirs : other.statics)
      if (theirs.key == memory.key) return theirs.data + (p - memory.data);
    fail("maps a static shared variable that the other block has not reached", site);
  }
  fail("maps an address that is not in its shared memory", site);
}

// ---- warps ------------------------------------------------------------------------------------

void Machine::finish_operation(Warp& warp, std::size_t index) {
  WarpOperation& op = *warp.operations[index];
  warp.operations.erase(warp.operations.begin() + static_cast<std::ptrdiff_t>(index));
  if (op.combine != nullptr) op.combine(op.arrived, op.arguments.data());
  ++stats().warp_operations;
  if (!op.polled) progress();
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((op.arrived >> lane & 1U) != 0) make_ready(*op.lanes[lane]);
}

void warp_operation(const char* what, std::uint32_t mask, void* argument, Combine combine,
                    bool orders_memory, Site site) {
  const Quiet quiet;
  Machine& machine = *active;
  Fiber& fiber = me();
  Warp& warp = fiber.block_state->warps[fiber.warp];
  fiber.what = what;
  fiber.site = site;
  fiber.mask = mask;
  if ((mask >> fiber.lane & 1U) == 0)
    fail("calls a warp operation with a mask that lacks its own lane", site);
  std::size_t index = 0;
  while (index < warp.operations.size() && (warp.operations[index]->mask & mask) == 0) ++index;
  if (index == warp.operations.size()) {
    WarpOperation& op = machine.take_operation();
    op.mask = mask;
    op.arrived = 0;
    op.what = what;
    op.site = site;
    op.combine = combine;
    op.polled = false;
    op.inside = 0;
    warp.operations.push_back(&op);
  }
  WarpOperation& op = *warp.operations[index];
  fiber.state = State::blocked;
  if (op.mask != mask || op.combine != combine || std::strcmp(op.what, what) != 0 ||
      (machine.settings.strict_barrier && !same(op.site, site)))
    machine.report("divergent warp operation: lanes of one warp meet in different calls or masks");
  if (orders_memory) op.tokens.release(0);
  op.arguments[fiber.lane] = argument;
  op.lanes[fiber.lane] = &fiber;
  op.arrived |= 1U << fiber.lane;
  op.polled |= fiber.polled;
  ++op.inside;
  fiber.polled = false;
  fiber.polls = 0;
  if (op.arrived == (mask & warp.live)) machine.finish_operation(warp, index);
  machine.yield();
  if (orders_memory) op.tokens.acquire(0);
  if (--op.inside == 0) machine.free_operations.push_back(&op);
}

WarpOperation& Machine::take_operation() {
  if (free_operations.empty()) {
    operations_.push_back(std::make_unique<WarpOperation>());
    free_operations.push_back(operations_.back().get());
  }
  WarpOperation& operation = *free_operations.back();
  free_operations.pop_back();
  return operation;
}

namespace {

struct ShuffleArgument {
  std::uint64_t in, out;
  int source;
};
void combine_shuffle(std::uint32_t arrived, void* const* arguments) {
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((arrived >> lane & 1U) == 0) continue;
    auto& mine = *static_cast<ShuffleArgument*>(arguments[lane]);
    const bool known = (arrived >> mine.source & 1U) != 0;
    mine.out = known ? static_cast<ShuffleArgument*>(arguments[mine.source])->in
                     : kPoison * 0x0001000100010001U;
  }
}

struct VoteArgument {
  std::uint64_t value;
  std::uint32_t nonzero, equal;
};
void combine_vote(std::uint32_t arrived, void* const* arguments) {
  std::uint32_t nonzero = 0;
  const auto of = [&](unsigned lane) -> VoteArgument& {
    return *static_cast<VoteArgument*>(arguments[lane]);
  };
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((arrived >> lane & 1U) != 0 && of(lane).value != 0) nonzero |= 1U << lane;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((arrived >> lane & 1U) == 0) continue;
    of(lane).nonzero = nonzero;
    of(lane).equal = 0;
    for (unsigned other = 0; other < 32; ++other)
      if ((arrived >> other & 1U) != 0 && of(other).value == of(lane).value)
        of(lane).equal |= 1U << other;
  }
}

}  // namespace

std::uint64_t shuffle(const char* what, std::uint32_t mask, std::uint64_t value, int source,
                      Site site) {
  ShuffleArgument argument{value, 0, source};
  warp_operation(what, mask, &argument, &combine_shuffle, false, site);
  return argument.out;
}

std::uint32_t ballot(const char* what, std::uint32_t mask, bool value, Site site) {
  VoteArgument argument{value ? 1U : 0U, 0, 0};
  warp_operation(what, mask, &argument, &combine_vote, false, site);
  return argument.nonzero;
}

std::uint32_t match(const char* what, std::uint32_t mask, std::uint64_t value, Site site) {
  VoteArgument argument{value, 0, 0};
  warp_operation(what, mask, &argument, &combine_vote, false, site);
  return argument.equal;
}

}  // namespace packrnn::simt

#if defined(PACKRNN_ASAN)
/// Called by AddressSanitizer: says which CUDA thread it was.
extern "C" void __asan_on_error() {
  using namespace packrnn::simt;
  if (self == nullptr) return;
  const std::string who = "simt: block " + text(self->block) + " thread " + text(self->thread) +
                          " in " + active->title() + '\n';
  std::fputs(who.c_str(), stderr);
}
#endif
