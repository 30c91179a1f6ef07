// Each primitive of device.cuh against what the PTX manual says it does.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.hpp"
#include "tests/simt/engine_fixture.hpp"

namespace packrnn::tests {
namespace {

using namespace kernels::cuda;

// ---- numbers ----------------------------------------------------------------------------------

TEST_CASE("16-bit storage types round to nearest even and have one NaN") {
  const auto bf16 = [](float value) { return from_float<Bf16>(value).bits; };
  const auto f16 = [](float value) { return from_float<F16>(value).bits; };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nans[] = {std::nanf(""), -std::nanf(""), __uint_as_float(0x7F800001U),
                        __uint_as_float(0xFFFFFFFFU)};
  for (const float nan : nans) {
    CHECK(bf16(nan) == 0x7FFF);
    CHECK(f16(nan) == 0x7FFF);
  }
  CHECK(bf16(1) == 0x3F80);
  CHECK(bf16(1 + 0x1p-8F) == 0x3F80);  // ties go to even
  CHECK(bf16(1 + 0x3p-8F) == 0x3F82);
  CHECK(bf16(1 + 0x1.01p-8F) == 0x3F81);
  CHECK(bf16(-2) == 0xC000);
  CHECK(bf16(kInf) == 0x7F80);
  CHECK(bf16(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(f16(1) == 0x3C00);
  CHECK(f16(1 + 0x1p-11F) == 0x3C00);
  CHECK(f16(1 + 0x3p-11F) == 0x3C02);
  CHECK(f16(65504) == 0x7BFF);
  CHECK(f16(65519) == 0x7BFF);
  CHECK(f16(65520) == 0x7C00);
  CHECK(f16(-1e9F) == 0xFC00);
  CHECK(f16(0x1p-24F) == 0x0001);
  CHECK(f16(-0.0F) == 0x8000);
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const bool bf16_nan = (bits & 0x7FFF) > 0x7F80, f16_nan = (bits & 0x7FFF) > 0x7C00;
    if (bf16(to_float(Bf16{b})) != (bf16_nan ? 0x7FFF : b)) FAIL("bf16 " << bits);
    if (f16(to_float(F16{b})) != (f16_nan ? 0x7FFF : b)) FAIL("f16 " << bits);
  }
}

TEST_CASE("tf32 rounds to nearest, ties away from zero") {
  const auto tf32 = [](float value) { return __uint_as_float(to_tf32(value)); };
  CHECK(tf32(1) == 1);
  CHECK(tf32(1 + 0x1p-11F) == 1 + 0x1p-10F);
  CHECK(tf32(-1 - 0x1p-11F) == -1 - 0x1p-10F);
  CHECK(tf32(1 + 0x1.ffep-12F) == 1);
  CHECK(std::isinf(tf32(std::numeric_limits<float>::max())));
  CHECK(std::isinf(tf32(std::numeric_limits<float>::infinity())));
  CHECK(std::isnan(tf32(std::nanf(""))));
}

TEST_CASE("numbers are spelled as in CUDA") {
  CHECK(fmaf(1 + 0x1p-12F, 1 + 0x1p-12F, -1 - 0x1p-11F) == 0x1p-24F);
  CHECK(fma(2.0, 3.0, 4.0) == 10.0);
  CHECK(__fdiv_rn(1, 3) == 1.0F / 3.0F);
  CHECK(__ddiv_rn(1, 3) == 1.0 / 3.0);
  CHECK(__fsqrt_rn(2) == std::sqrt(2.0F));
  CHECK(rintf(2.5F) == 2);
  CHECK(rint(3.5) == 4);
  CHECK(__float_as_uint(1) == 0x3F800000U);
  CHECK(__int_as_float(0x40000000) == 2);
  CHECK(__longlong_as_double(__double_as_longlong(-0.1)) == -0.1);
  CHECK(__popc(0xF0F0U) == 8);
  CHECK(__clz(1) == 31);
  CHECK(__clz(0) == 32);
  CHECK(__ffs(8) == 4);
  CHECK(__umulhi(0x80000000U, 6) == 3);
  CHECK(__funnelshift_l(0x80000000U, 1, 1) == 3);
  CHECK(min(-1, 2) == -1);
  CHECK(max(3U, 2U) == 3U);
  CHECK(max(std::nanf(""), 2.0F) == 2.0F);
  CHECK(std::abs(ex2_approx(3.5F) - 11.3137085F) < 1e-5F);
  CHECK(rcp_approx(4) == 0.25F);
}

// ---- warps ------------------------------------------------------------------------------------

TEST_CASE("shuffles") {
  under_all_schedules(8, [] {
    Count wrong;
    const auto expect = [&](auto got, auto expected) { wrong += got != expected; };
    run(blocks_of(1, 64), [&] {
      const int lane = static_cast<int>(threadIdx.x % 32);
      const int warp = static_cast<int>(threadIdx.x / 32);
      const int mine = 100 * warp + lane;
      expect(__shfl_sync(~0U, mine, 5), 100 * warp + 5);
      expect(__shfl_sync(~0U, mine, lane + 1), 100 * warp + (lane + 1) % 32);
      expect(__shfl_sync(~0U, mine, 3, 8), 100 * warp + lane / 8 * 8 + 3);
      expect(__shfl_down_sync(~0U, mine, 4U), lane < 28 ? mine + 4 : mine);
      expect(__shfl_down_sync(~0U, mine, 3U, 16), lane % 16 < 13 ? mine + 3 : mine);
      expect(__shfl_up_sync(~0U, mine, 7U), lane >= 7 ? mine - 7 : mine);
      expect(__shfl_up_sync(~0U, mine, 2U, 4), lane % 4 >= 2 ? mine - 2 : mine);
      expect(__shfl_xor_sync(~0U, mine, 17), 100 * warp + (lane ^ 17));
      expect(__shfl_xor_sync(~0U, mine, 8, 8), lane % 16 < 8 ? mine : mine - 8);
      expect(__shfl_xor_sync(~0U, 0.5 * mine, 1), 0.5 * (mine ^ 1));
      expect(__shfl_sync(~0U, static_cast<std::uint64_t>(mine) << 33, 2),
             static_cast<std::uint64_t>(100 * warp + 2) << 33);
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("halves of a warp shuffle among themselves; a lane without part gives poison") {
  under_all_schedules(8, [] {
    Count wrong;
    run(blocks_of(1, 32), [&] {
      const unsigned lane = threadIdx.x;
      const unsigned mask = lane < 16 ? 0xFFFFU : 0xFFFF0000U;
      float sum = 1;
      for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(mask, sum, half);
      if (sum != 16) ++wrong;
      if (!std::isnan(__shfl_sync(mask, 1.0F, lane < 16 ? 20 : 0))) ++wrong;
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("votes") {
  under_all_schedules(8, [] {
    Count wrong;
    run(blocks_of(1, 72), [&] {  // the last warp has 8 lanes
      const unsigned lane = threadIdx.x % 32, live = threadIdx.x < 64 ? ~0U : 0xFFU;
      wrong += __ballot_sync(live, lane % 2 == 1) != (0xAAAAAAAAU & live);
      wrong += __any_sync(live, lane == 7) != 1;
      wrong += __any_sync(live, lane == 99) != 0;
      wrong += __all_sync(live, lane < 32) != 1;
      wrong += __all_sync(live, lane != 3) != 0;
      wrong += __match_any_sync(live, lane % 4) != (0x11111111U << lane % 4 & live);
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("a warp barrier orders shared memory") {
  under_all_schedules(16, [] {
    Count wrong;
    run(blocks_of(1, 64), [&] {
      PACKRNN_SHARED(unsigned, slots, [64]);
      for (unsigned round = 0; round < 4; ++round) {
        slots[threadIdx.x] = round;
        __syncwarp();
        const unsigned other = threadIdx.x / 32 * 32 + (threadIdx.x + 9) % 32;
        if (slots[other] != round) ++wrong;
        __syncwarp();
      }
    });
    CHECK(wrong == 0);
  });
}

// ---- tensor cores -----------------------------------------------------------------------------
// Matrices with a value of its own in every element; fragments are gathered by the formulas of the
// PTX manual, chapter "Matrix Fragments": for element i of a fragment, its row and column.

struct Position {
  int row, column;
};
using Lane = int;
Position a_16816(Lane lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  const bool upper = (i >= 0 && i < 2) || (i >= 4 && i < 6);
  return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Position b_16816(Lane lane, int i) {
  return {(lane % 4) * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2};
}
Position a_1688(Lane lane, int i) {
  return {(lane >> 2) + (i == 1 || i == 3 ? 8 : 0), lane % 4 + (i >= 2 ? 4 : 0)};
}
Position b_1688(Lane lane, int i) { return {lane % 4 + (i == 1 ? 4 : 0), lane >> 2}; }
Position d_168(Lane lane, int i) {
  return {(lane >> 2) + (i < 2 ? 0 : 8), (lane % 4) * 2 + (i & 1)};
}

/// depth is 16 with 2 elements in a register, or 8 with one. bits_of(index) is an element's value.
template <int kDepth, class Bits, class Value, class Product>
void check_product(Bits bits_of, Value value_of, Product product) {
  constexpr int kEach = kDepth == 16 ? 2 : 1;
  float a[16][kDepth], b[kDepth][8];
  std::uint32_t a_bits[16][kDepth], b_bits[kDepth][8];
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < kDepth; ++c) {
      a_bits[r][c] = bits_of(r * kDepth + c);
      a[r][c] = value_of(a_bits[r][c]);
    }
  for (int r = 0; r < kDepth; ++r)
    for (int c = 0; c < 8; ++c) {
      b_bits[r][c] = bits_of(127 - (r * 8 + c));
      b[r][c] = value_of(b_bits[r][c]);
    }
  float result[16][8] = {};
  run(blocks_of(1, 32), [&] {
    const int lane = static_cast<int>(threadIdx.x);
    std::uint32_t fa[4] = {}, fb[2] = {};
    for (int i = 0; i < 4 * kEach; ++i) {
      const auto [r, c] = kEach == 2 ? a_16816(lane, i) : a_1688(lane, i);
      fa[i / kEach] |= a_bits[r][c] << 16 * (i % kEach);
    }
    for (int i = 0; i < 2 * kEach; ++i) {
      const auto [r, c] = kEach == 2 ? b_16816(lane, i) : b_1688(lane, i);
      fb[i / kEach] |= b_bits[r][c] << 16 * (i % kEach);
    }
    float d[4];
    for (int i = 0; i < 4; ++i)
      d[i] = static_cast<float>(d_168(lane, i).row * 8 + d_168(lane, i).column);
    product(d, U32x4{fa[0], fa[1], fa[2], fa[3]}, fb[0], fb[1]);
    for (int i = 0; i < 4; ++i) result[d_168(lane, i).row][d_168(lane, i).column] = d[i];
  });
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 8; ++c) {
      double expected = r * 8 + c;
      for (int k = 0; k < kDepth; ++k) expected += static_cast<double>(a[r][k]) * b[k][c];
      // Neighbouring elements differ by 2^-7 and more, so another element would be off by more.
      INFO("row " << r << " column " << c);
      REQUIRE(std::abs(result[r][c] - expected) < 1e-4);
    }
}

TEST_CASE("products of tensor cores have the documented fragments") {
  check_product<16>(
      [](int i) { return 0x3F80U + static_cast<unsigned>(i); },
      [](std::uint32_t bits) { return to_float(Bf16{static_cast<std::uint16_t>(bits)}); },
      [](auto&&... arguments) { mma_bf16_16816(arguments...); });
  check_product<16>(
      [](int i) { return 0x3C00U + 8 * static_cast<unsigned>(i); },
      [](std::uint32_t bits) { return to_float(F16{static_cast<std::uint16_t>(bits)}); },
      [](auto&&... arguments) { mma_f16_16816(arguments...); });
  check_product<8>([](int i) { return to_tf32(1 + static_cast<float>(i) / 128); },
                   [](std::uint32_t bits) { return __uint_as_float(bits); },
                   [](auto&&... arguments) { mma_tf32_1688(arguments...); });
}

TEST_CASE("a tf32 product ignores the lowest 13 bits") {
  float result = 0;
  run(blocks_of(1, 32), [&] {
    float d[4] = {};
    const std::uint32_t one = 0x3F801FFFU;
    mma_tf32_1688(d, U32x4{one, one, one, one}, one, one);
    if (threadIdx.x == 0) result = d[0];
  });
  CHECK(result == 8);
}

TEST_CASE("ldmatrix gives every lane its elements") {
  std::vector<std::uint32_t> plain(32 * 4), turned(32 * 4), plain2(32 * 2), turned2(32 * 2);
  run(with_shared(blocks_of(1, 32), 4 * 8 * 16), [&] {
    PACKRNN_DYNAMIC_SHARED(std::uint16_t, elements);  // 4 matrices of 8 x 8; element 64m + 8r + c
    for (unsigned i = threadIdx.x; i < 256; i += 32) elements[i] = static_cast<std::uint16_t>(i);
    __syncthreads();
    const std::uint16_t* row = elements + 8 * threadIdx.x;
    const U32x4 p = ldmatrix_x4(row), t = ldmatrix_x4_trans(row);
    const U32x2 p2 = ldmatrix_x2(row), t2 = ldmatrix_x2_trans(row);
    const std::uint32_t all[4][4] = {
        {p.x, p.y, p.z, p.w}, {t.x, t.y, t.z, t.w}, {p2.x, p2.y, 0, 0}, {t2.x, t2.y, 0, 0}};
    for (unsigned m = 0; m < 4; ++m) {
      plain[threadIdx.x * 4 + m] = all[0][m];
      turned[threadIdx.x * 4 + m] = all[1][m];
      if (m < 2) plain2[threadIdx.x * 2 + m] = all[2][m];
      if (m < 2) turned2[threadIdx.x * 2 + m] = all[3][m];
    }
  });
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned m = 0; m < 4; ++m) {
      const unsigned low = 64 * m + 8 * (lane / 4) + 2 * (lane % 4);
      const unsigned low_turned = 64 * m + 8 * (2 * (lane % 4)) + lane / 4;
      const std::uint32_t row_pair = low | (low + 1) << 16;
      const std::uint32_t column_pair = low_turned | (low_turned + 8) << 16;
      CHECK(plain[lane * 4 + m] == row_pair);
      CHECK(turned[lane * 4 + m] == column_pair);
      if (m < 2) CHECK(plain2[lane * 2 + m] == row_pair);
      if (m < 2) CHECK(turned2[lane * 2 + m] == column_pair);
    }
}

// ---- asynchronous copies ----------------------------------------------------------------------

TEST_CASE("copied words are there after the wait and not before") {
  std::vector<F32x4> source(3 * 32);
  for (std::size_t i = 0; i < source.size(); ++i) {
    const auto v = static_cast<float>(4 * i);
    source[i] = {v, v + 1, v + 2, v + 3};
  }
  Count wrong;
  run(blocks_of(1, 32), [&] {
    PACKRNN_SHARED(F32x4, target, [3][32]);
    const unsigned i = threadIdx.x;
    const auto arrived = [&](unsigned group) {
      return target[group][i].x == source[32 * group + i].x &&
             target[group][i].w == source[32 * group + i].w;
    };
    for (unsigned group = 0; group < 3; ++group) {
      cp_async16(&target[group][i], &source[32 * group + i]);
      cp_async_commit();
    }
    for (unsigned group = 0; group < 3; ++group)
      wrong += arrived(group) || !std::isnan(target[group][i].y);
    cp_async_wait<2>();
    wrong += !arrived(0) || arrived(1) || arrived(2);
    cp_async_wait<1>();
    wrong += !arrived(1) || arrived(2);
    cp_async_wait<0>();
    wrong += !arrived(2);
    cp_async16(&target[0][i], nullptr, false);  // zeros
    cp_async_wait<0>();                         // not committed: not waited for
    wrong += !std::isnan(target[0][i].x);
    cp_async_commit();
    cp_async_commit();  // an empty group counts too
    cp_async_wait<1>();
    wrong += target[0][i].x != 0 || target[0][i].w != 0;
  });
  CHECK(wrong == 0);
}

// ---- words between blocks -----------------------------------------------------------------------

TEST_CASE("strong loads and stores") {
  alignas(16) std::uint32_t words[4] = {1, 2, 3, 4};
  std::uint64_t wide = 5;
  run(blocks_of(1, 1), [&] {
    const U32x4 v = ld_relaxed_v4(words);
    REQUIRE((v.x == 1 && v.y == 2 && v.z == 3 && v.w == 4));
    st_relaxed_v4(words, U32x4{5, 6, 7, 8});
    st_relaxed(words + 1, ld_relaxed(words + 1) + 60);
    st_relaxed(&wide, ld_relaxed(&wide) << 40);
    REQUIRE(add_release(words + 3, 10) == 8);
    st_release(words, ld_acquire(words) + 100);
  });
  CHECK((words[0] == 105 && words[1] == 66 && words[2] == 7 && words[3] == 18));
  CHECK(wide == std::uint64_t{5} << 40);
}

TEST_CASE("a vector of words can be read between two stores of it") {
  const WithOptions restore;
  simt::options().order = simt::Order::random;
  simt::options().preempt_permille = 300;
  bool torn = false;
  for (simt::options().seed = 1; simt::options().seed <= 20; ++simt::options().seed) {
    alignas(16) std::uint32_t words[4] = {};
    run(blocks_of(1, 2), [&] {
      if (threadIdx.x == 0) {
        st_relaxed_v4(words, U32x4{1, 1, 1, 1});
      } else {
        const U32x4 v = ld_relaxed_v4(words);
        const std::uint32_t sum = v.x + v.y + v.z + v.w;
        torn |= sum != 0 && sum != 4;
      }
    });
  }
  CHECK(torn);
}

TEST_CASE("a release is followed by what came before it") {
  under_all_schedules(20, [] {
    float data[32] = {};
    std::uint32_t flag = 0;
    Count wrong;
    run(cooperative(2, 32), [&] {
      if (blockIdx.x == 0) {
        data[threadIdx.x] = static_cast<float>(threadIdx.x) + 1;
        __syncthreads();
        if (threadIdx.x == 0) st_release(&flag, 1);
      } else {
        if (threadIdx.x == 0)
          for (int spins = 0; ld_acquire(&flag) == 0; ++spins) backoff(spins);
        __syncthreads();
        if (data[31 - threadIdx.x] != static_cast<float>(32 - threadIdx.x)) ++wrong;
      }
    });
    CHECK(wrong == 0);
  });
}

// ---- named barriers -----------------------------------------------------------------------------

TEST_CASE("named barriers hand tiles from producers to consumers") {
  constexpr int kTiles = 6, kFull = 1, kEmpty = 3;  // and the one after each, for the second buffer
  under_all_schedules(16, [] {
    Count wrong;
    run(blocks_of(1, 96), [&] {
      PACKRNN_SHARED(int, tiles, [2][64]);
      const unsigned warp = threadIdx.x / 32;
      for (int t = 0; t < kTiles; ++t) {
        const int buffer = t % 2;
        if (warp == 0) {
          if (t >= 2) named_barrier_sync(kEmpty + buffer, 96);
          tiles[buffer][threadIdx.x] = tiles[buffer][threadIdx.x + 32] = t;
          named_barrier_arrive(kFull + buffer, 96);
        } else {
          named_barrier_sync(kFull + buffer, 96);
          if (tiles[buffer][threadIdx.x - 32] != t) ++wrong;
          if (t + 2 < kTiles) named_barrier_arrive(kEmpty + buffer, 96);
        }
      }
    });
    CHECK(wrong == 0);
  });
}

// ---- clusters -----------------------------------------------------------------------------------

TEST_CASE("a cluster knows its blocks and writes to their shared memory") {
  under_all_schedules(16, [] {
    Count wrong;
    run(with_shared(clusters_of(4, 8, 32), 64 * 4), [&] {
      PACKRNN_DYNAMIC_SHARED(U32x4, inbox);
      PACKRNN_SHARED(U32x4, fixed, [4]);
      const std::uint32_t rank = cluster_rank();
      wrong += rank != blockIdx.x % 4 || cluster_id() != blockIdx.x / 4;
      if (threadIdx.x < 4) fixed[threadIdx.x] = U32x4{};
      cluster_sync();
      if (threadIdx.x < 4) {
        const U32x4 letter{blockIdx.x, threadIdx.x, 7, 8};
        dsmem_store_v4(&inbox[rank], threadIdx.x, letter);
        dsmem_store_v4(&fixed[rank], threadIdx.x, letter);
      }
      cluster_arrive();
      cluster_wait();
      if (threadIdx.x < 4)
        for (const U32x4& letter : {inbox[threadIdx.x], fixed[threadIdx.x]})
          if (letter.x != blockIdx.x / 4 * 4 + threadIdx.x || letter.y != rank || letter.w != 8)
            ++wrong;
      cluster_sync();
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("asynchronous stores complete transaction barriers, phase by phase") {
  constexpr unsigned kSize = 4, kSteps = 6;
  under_all_schedules(16, [] {
    Count wrong;
    run(clusters_of(kSize, kSize, 64), [&] {
      PACKRNN_SHARED(U32x4, inbox, [2][kSize * 32]);
      PACKRNN_SHARED(std::uint64_t, barriers, [2]);
      const std::uint32_t rank = cluster_rank();
      if (threadIdx.x == 0) {
        mbarrier_init(&barriers[0], 1);
        mbarrier_init(&barriers[1], 1);
        mbarrier_init_fence();
      }
      cluster_sync();
      for (unsigned step = 0; step < kSteps; ++step) {
        const unsigned buffer = step % 2;
        if (threadIdx.x == 0) mbarrier_arrive_expect(&barriers[buffer], kSize * 32 * 16);
        if (threadIdx.x < 32)
          for (unsigned to = 0; to < kSize; ++to)
            st_async_v4(&inbox[buffer][rank * 32 + threadIdx.x], &barriers[buffer], to,
                        U32x4{step, rank, threadIdx.x, to});
        for (int spins = 0; !mbarrier_try_wait(&barriers[buffer], step / 2 % 2); ++spins)
          backoff(spins);
        for (unsigned i = threadIdx.x; i < kSize * 32; i += 64) {
          const U32x4 v = inbox[buffer][i];
          if (v.x != step || v.y != i / 32 || v.z != i % 32 || v.w != rank) ++wrong;
        }
        __syncthreads();  // all have read before any can be one step ahead
      }
      cluster_sync();
    });
    CHECK(wrong == 0);
  });
}

TEST_CASE("a transaction barrier waits for its arrivals and for its bytes") {
  std::vector<bool> ended;
  run(blocks_of(1, 1), [&] {
    PACKRNN_SHARED(std::uint64_t, barrier);
    PACKRNN_SHARED(U32x4, inbox);
    mbarrier_init(&barrier, 2);
    ended.push_back(mbarrier_try_wait(&barrier, 1));  // the phase before the first has ended
    ended.push_back(mbarrier_try_wait(&barrier, 0));
    mbarrier_arrive_expect(&barrier, 16);
    mbarrier_arrive_expect(&barrier, 0);
    ended.push_back(mbarrier_try_wait(&barrier, 0));
    st_async_v4(&inbox, &barrier, 0, U32x4{1, 2, 3, 4});
    for (int spins = 0; !mbarrier_try_wait(&barrier, 0); ++spins) backoff(spins);
    ended.push_back(inbox.z == 3);
    ended.push_back(mbarrier_try_wait(&barrier, 1));
    mbarrier_arrive_expect(&barrier, 0);
    mbarrier_arrive_expect(&barrier, 0);
    ended.push_back(mbarrier_try_wait(&barrier, 1));
  });
  CHECK(ended == std::vector<bool>{true, false, false, true, false, true});
}

}  // namespace
}  // namespace packrnn::tests
