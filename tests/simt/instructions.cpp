// Tensor core products, ldmatrix, and what happens asynchronously: cp.async, st.async, mbarrier.
#include <algorithm>
#include <cstring>

#include "packrnn/runtime/element.hpp"
#include "tests/simt/machine.hpp"

namespace packrnn::simt {
namespace {

constexpr std::uint32_t kWarp = 0xFFFFFFFFU;

// ---- products ---------------------------------------------------------------------------------
// The layouts are those of the PTX manual, "Matrix Fragments for mma.m16n8k16" and "... m16n8k8".

struct MmaArgument {
  float* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
  Site site;
};

float element(std::uint32_t pair, int half, Fragment type) {
  const auto bits = static_cast<std::uint16_t>(half != 0 ? pair >> 16 : pair);
  return type == Fragment::bf16 ? bfloat16_value(bits) : half_value(bits);
}

template <Fragment kType>
void combine_mma(std::uint32_t arrived, void* const* arguments) {
  if (arrived != kWarp) fail("takes part in a matrix product without a whole warp", me().site);
  constexpr bool kTf32 = kType == Fragment::tf32;
  constexpr int kDepth = kTf32 ? 8 : 16;
  float a[16][kDepth], b[kDepth][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<MmaArgument*>(arguments[lane]);
    const int g = lane / 4, q = lane % 4;
    if constexpr (kTf32) {
      const auto value = [](std::uint32_t bits) { return __uint_as_float(bits & 0xFFFFE000U); };
      for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][q + 4 * (r / 2)] = value(mine.a[r]);
      for (int r = 0; r < 2; ++r) b[q + 4 * r][g] = value(mine.b[r]);
    } else {
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r)
          a[g + 8 * (r % 2)][2 * q + half + 8 * (r / 2)] = element(mine.a[r], half, kType);
        for (int r = 0; r < 2; ++r) b[2 * q + half + 8 * r][g] = element(mine.b[r], half, kType);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<MmaArgument*>(arguments[lane]);
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      float sum = mine.d[r];  // f32, but in which order the hardware adds is not specified
      for (int k = 0; k < kDepth; ++k) sum += a[row][k] * b[k][column];
      mine.d[r] = sum;
    }
  }
}

struct LoadMatrixArgument {
  std::uint32_t* registers;
  const unsigned char* row;
  int matrices;
  bool transpose;
};

void combine_load_matrix(std::uint32_t arrived, void* const* arguments) {
  if (arrived != kWarp) fail("takes part in ldmatrix without a whole warp", me().site);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<LoadMatrixArgument*>(arguments[lane]);
    const int g = lane / 4, q = lane % 4;
    for (int matrix = 0; matrix < mine.matrices; ++matrix) {
      std::uint16_t pair[2];
      for (int half = 0; half < 2; ++half) {
        const int row = mine.transpose ? 2 * q + half : g;
        const int column = mine.transpose ? g : 2 * q + half;
        const auto& source = *static_cast<LoadMatrixArgument*>(arguments[8 * matrix + row]);
        std::memcpy(&pair[half], source.row + 2 * column, 2);
      }
      mine.registers[matrix] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  }
}

TransactionBarrier& transaction(Block& block, void* address, Site site) {
  for (TransactionBarrier& barrier : block.transactions)
    if (barrier.address == address) return barrier;
  fail("uses an mbarrier that was not initialised", site);
}

void end_phase(TransactionBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
  active->progress();
}

/// The block in whose shared memory it lies: the running thread's or another of its cluster.
Block& owner(const void* address, Site site) {
  for (Block* block : me().block_state->cluster->blocks) {
    if (block->dynamic.holds(address)) return *block;
    for (const SharedMemory& memory : block->statics)
      if (memory.holds(address)) return *block;
  }
  fail("uses an address that is not in shared memory", site);
}

}  // namespace

void mma(Fragment type, float* d, const std::uint32_t* a, const std::uint32_t* b, Site site) {
  MmaArgument argument{d, a, b, site};
  switch (type) {
    case Fragment::bf16:
      return warp_operation("mma_bf16_16816", kWarp, &argument, &combine_mma<Fragment::bf16>, false,
                            site);
    case Fragment::f16:
      return warp_operation("mma_f16_16816", kWarp, &argument, &combine_mma<Fragment::f16>, false,
                            site);
    case Fragment::tf32:
      break;
  }
  warp_operation("mma_tf32_1688", kWarp, &argument, &combine_mma<Fragment::tf32>, false, site);
}

void load_matrix(std::uint32_t* registers, int matrices, bool transpose, const void* row,
                 Site site) {
  if (static_cast<int>(self->lane) < 8 * matrices) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
      fail("gives ldmatrix a misaligned row", site);
    tsan_read(row, 16);
  }
  LoadMatrixArgument argument{registers, static_cast<const unsigned char*>(row), matrices,
                              transpose};
  warp_operation(transpose ? "ldmatrix.trans" : "ldmatrix", kWarp, &argument, &combine_load_matrix,
                 false, site);
}

// ---- cp.async ---------------------------------------------------------------------------------

void copy_async(void* target, const void* source, std::size_t bytes, bool zero, Site site) {
  if (reinterpret_cast<std::uintptr_t>(target) % bytes != 0 ||
      (!zero && reinterpret_cast<std::uintptr_t>(source) % bytes != 0))
    fail("issues a misaligned cp.async", site);
  if (!zero) tsan_read(source, bytes);
  tsan_write(target, bytes);
  const Quiet quiet;
  owner(target, site);
  Fiber& fiber = me();
  fiber.site = site;
  AsyncCopy copy{static_cast<char*>(target), fiber.open_group, {}};
  if (!zero) std::memcpy(copy.data.data(), source, bytes);
  poison(target, bytes);
  fiber.copies.push_back(copy);
}

void copy_async_commit() { ++me().open_group; }

void copy_async_wait(unsigned groups_left) {
  Fiber& fiber = me();
  if (fiber.open_group < groups_left) return;
  const unsigned end = fiber.open_group - groups_left;
  std::size_t done = 0;
  for (; done < fiber.copies.size() && fiber.copies[done].group < end; ++done) {
    const AsyncCopy& copy = fiber.copies[done];
    tsan_write(copy.target, copy.data.size());
    const Quiet quiet;
    std::memcpy(copy.target, copy.data.data(), copy.data.size());
  }
  const Quiet quiet;
  fiber.copies.erase(fiber.copies.begin(),
                     fiber.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

// ---- mbarrier and st.async --------------------------------------------------------------------

void mbarrier_init(void* barrier, unsigned count, Site site) {
  if (reinterpret_cast<std::uintptr_t>(barrier) % 8 != 0) fail("has a misaligned mbarrier", site);
  if (count == 0) fail("initialises an mbarrier for no arrivals", site);
  // Later uses read: so a missing barrier in between is a race.
  tsan_write(barrier, 8);
  const Quiet quiet;
  Block& block = *me().block_state;
  if (&owner(barrier, site) != &block) fail("initialises an mbarrier of another block", site);
  auto& all = block.transactions;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const auto& other) { return other.address == barrier; }),
            all.end());
  all.push_back({barrier, count, count, 0, 0, {}});
}

void mbarrier_arrive_expect(void* barrier, unsigned bytes, Site site) {
  tsan_read(barrier, 8);
  const Quiet quiet;
  TransactionBarrier& b = transaction(*me().block_state, barrier, site);
  if (b.pending == 0) fail("arrives at an mbarrier more often than its count", site);
  b.tokens.release(b.phase);
  b.bytes += bytes;
  --b.pending;
  end_phase(b);
}

bool mbarrier_try_wait(void* barrier, unsigned parity, Site site) {
  tsan_read(barrier, 8);
  before_access(barrier, 8, site);
  {
    const Quiet quiet;
    TransactionBarrier& b = transaction(*me().block_state, barrier, site);
    if ((b.phase & 1U) != (parity & 1U)) {
      b.tokens.acquire(parity);
      return true;
    }
  }
  after_load();
  return false;
}

void store_async(void* target, void* barrier, const void* value, Site site) {
  tsan_read(barrier, 8);
  const Quiet quiet;
  Block& block = owner(target, site);
  transaction(block, barrier, site);
  AsyncStore store{&block, target, barrier, {}};
  std::memcpy(store.data.data(), value, store.data.size());
  tsan_release(&active->proxy_token);
  active->stores.push_back(store);
  active->call_scheduler();
}

/// One store arrives, whichever, at a time when no thread runs.
void Machine::deliver() {
  std::swap(stores[random() % stores.size()], stores.back());
  const AsyncStore store = stores.back();
  stores.pop_back();
  auto& all = store.block->transactions;
  const auto barrier = std::find_if(all.begin(), all.end(),
                                    [&](const auto& b) { return b.address == store.barrier; });
  if (barrier == all.end()) report("an asynchronous store found no mbarrier,");
  std::memcpy(store.target, store.data.data(), store.data.size());
#if defined(PACKRNN_SIMT_TSAN)
  if (proxy_ == nullptr) {
    proxy_ = __tsan_create_fiber(0);
    __tsan_set_fiber_name(proxy_, "asynchronous stores");
  }
  __tsan_switch_to_fiber(proxy_, 1);
  __tsan_acquire(&proxy_token);
  __tsan_write_range(store.target, store.data.size());
  barrier->tokens.release(barrier->phase);
  __tsan_switch_to_fiber(main.tsan, 1);
#endif
  barrier->bytes -= static_cast<std::int64_t>(store.data.size());
  end_phase(*barrier);
}

}  // namespace packrnn::simt
