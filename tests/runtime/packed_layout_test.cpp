#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/packed_layout.hpp>
#include <random>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

using Catch::Contains;
using Ints = std::vector<std::int64_t>;

Ints list(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }

/// Every rule of a layout, from the lengths alone and by the slowest way.
void check_layout(const PackedLayout& layout, const Ints& lengths) {
  const auto n = static_cast<std::int64_t>(lengths.size());
  REQUIRE(layout.batch() == n);
  CHECK(list(layout.lengths()) == lengths);
  const std::int64_t longest = n == 0 ? 0 : *std::max_element(lengths.begin(), lengths.end());
  REQUIRE(layout.steps() == longest);
  CHECK(layout.total() == std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));

  std::vector<std::pair<std::int64_t, std::int64_t>> order;  // decreasing length, then the index
  for (std::int64_t i = 0; i < n; ++i) order.emplace_back(-lengths[static_cast<std::size_t>(i)], i);
  std::sort(order.begin(), order.end());
  Ints sorted;
  for (const auto& [length, i] : order) sorted.push_back(i);
  CHECK(list(layout.sorted_indices()) == sorted);
  REQUIRE(layout.unsorted_indices().size() == sorted.size());
  for (std::size_t k = 0; k < sorted.size(); ++k)
    CHECK(layout.unsorted_indices()[static_cast<std::size_t>(sorted[k])] ==
          static_cast<std::int64_t>(k));
  CHECK(layout.sorted() == std::is_sorted(sorted.begin(), sorted.end()));

  Ints offsets{0};
  std::int64_t row = 0;
  for (std::int64_t t = 0; t < longest; ++t) {
    const auto live = std::count_if(lengths.begin(), lengths.end(),
                                    [&](std::int64_t length) { return length > t; });
    CHECK(layout.batch_sizes()[static_cast<std::size_t>(t)] == live);
    offsets.push_back(offsets.back() + live);
    for (std::int64_t k = 0; k < live; ++k)  // rows of a step in sorted order
      CHECK(layout.row(sorted[static_cast<std::size_t>(k)], t) == row++);
  }
  CHECK(list(layout.offsets()) == offsets);
}

}  // namespace

TEST_CASE("the example in the header") {
  const auto layout = PackedLayout::make({2, 4, 1});
  CHECK(list(layout->sorted_indices()) == Ints{1, 0, 2});
  CHECK(list(layout->unsorted_indices()) == Ints{1, 0, 2});
  CHECK(list(layout->batch_sizes()) == Ints{3, 2, 1, 1});
  CHECK(list(layout->offsets()) == Ints{0, 3, 5, 6, 7});
  CHECK(layout->padded_length() == 4);
  CHECK_FALSE(layout->sorted());
  CHECK(list(layout->sequence_ids()) == Ints{0, 1, 2});
  check_layout(*layout, {2, 4, 1});
}

TEST_CASE("every rule holds for 200 random batches, ties and zeros included") {
  std::mt19937 random(20240501);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(trial);
    Ints lengths(static_cast<std::size_t>(below(40)));
    // Short and many (counting), or long and few (comparing); always some ties.
    const std::int64_t top = trial % 3 == 0 ? 4 : trial % 3 == 1 ? 30 : 1500;
    for (std::int64_t& length : lengths) length = below(top);
    if (trial % 5 == 0) std::sort(lengths.begin(), lengths.end(), std::greater<>{});
    if (trial % 7 == 0) std::sort(lengths.begin(), lengths.end());
    const auto layout = PackedLayout::make(lengths);
    check_layout(*layout, lengths);

    if (layout->steps() == 0) continue;
    // The same through another framework's fields, which know no zero lengths.
    const auto positive = layout->batch_sizes()[0];
    if (positive != layout->batch()) continue;
    const auto again = PackedLayout::from_batch_sizes(layout->batch_sizes(), layout->total(),
                                                      layout->sorted_indices());
    check_layout(*again, lengths);
    CHECK(again->padded_length() == layout->steps());
    CHECK(list(again->sequence_ids()) == list(layout->sequence_ids()));
  }
}

TEST_CASE("the order is stable where many sequences have one length") {
  const Ints equal(1000, 3);
  CHECK(PackedLayout::make(equal)->sorted());
  Ints lengths(1000);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int64_t>(i % 2);
  check_layout(*PackedLayout::make(lengths), lengths);
}

TEST_CASE("zero lengths, all zero, and the empty batch are legal") {
  check_layout(*PackedLayout::make({0, 3, 0, 2}), {0, 3, 0, 2});
  const auto zeros = PackedLayout::make({0, 0, 0});
  check_layout(*zeros, {0, 0, 0});
  CHECK(zeros->padded_length() == 0);
  CHECK(zeros->sorted());
  check_layout(*PackedLayout::make({}), {});
  CHECK(PackedLayout::make({}, {.padded_length = 5})->padded_length() == 5);
  CHECK(PackedLayout::make({0, 0}, {.padded_length = 7})->padded_length() == 7);
}

TEST_CASE("options: padded length and sequence ids") {
  const auto layout = PackedLayout::make({1, 2}, {.padded_length = 9, .sequence_ids = {70, -4}});
  CHECK(layout->padded_length() == 9);
  CHECK(list(layout->sequence_ids()) == Ints{70, -4});
  CHECK_THROWS_WITH(PackedLayout::make({1, 6, 2}, {.padded_length = 5}),
                    Contains("padded_length is 5") && Contains("lengths[1] is 6"));
  CHECK_THROWS_WITH(PackedLayout::make({1}, {.padded_length = 0}),
                    Contains("is 0") && Contains("is 1"));
  CHECK_THROWS_WITH(PackedLayout::make({1}, {.padded_length = -2}), Contains("-2"));
  CHECK_THROWS_WITH(PackedLayout::make({1, 2}, {.sequence_ids = {1, 2, 3}}),
                    Contains("3 entries") && Contains("2 sequences"));
  CHECK_THROWS_AS(PackedLayout::make({}, {.sequence_ids = {1}}), InvalidArgument);
}

TEST_CASE("B25: zero, negative and unsorted lengths") {
  CHECK(list(PackedLayout::make({4, 2, 0})->batch_sizes()) == Ints{2, 2, 1, 1});
  CHECK(list(PackedLayout::make({0, 2, 4})->sorted_indices()) == Ints{2, 1, 0});
  CHECK_THROWS_AS(PackedLayout::make({4, 2, -1}), InvalidArgument);
  CHECK_THROWS_WITH(PackedLayout::make({4, 2, -1}), Contains("lengths[2] is -1"));
  CHECK_THROWS_WITH(
      PackedLayout::make({2, 4, 3}, {.enforce_sorted = true}),
      Contains("lengths[0] is 2") && Contains("lengths[1] is 4") && Contains("enforce_sorted"));
  CHECK_THROWS_WITH(PackedLayout::make({5, 4, 0, 1}, {.enforce_sorted = true}),
                    Contains("lengths[3] is 1"));
  CHECK(PackedLayout::make({4, 4, 0}, {.enforce_sorted = true})->sorted());
  CHECK(PackedLayout::make({}, {.enforce_sorted = true})->batch() == 0);
}

TEST_CASE("B25: lengths shorter than the padded batch everywhere") {
  const auto layout = PackedLayout::make({3, 2, 1}, {.padded_length = 4});
  CHECK(list(layout->batch_sizes()) == Ints{3, 2, 1});
  CHECK(layout->padded_length() == 4);
}

TEST_CASE("B25: lengths of two dimensions, or none") {
  CHECK_THROWS_WITH(Lengths(Tensor::from<std::int64_t>({1, 2, 3, 4}, {2, 2})), Contains("[2, 2]"));
  CHECK_THROWS_WITH(Lengths(Tensor::from<std::int64_t>({1}, {})), Contains("[]"));
  CHECK_THROWS_AS(Lengths(TensorView()), InvalidArgument);
}

TEST_CASE("lengths that no memory can hold are refused before any is asked for") {
  const std::int64_t huge = std::int64_t{1} << 62;
  CHECK_THROWS_WITH(PackedLayout::make({1, huge}),
                    Contains("lengths[1] is 4611686018427387904") && Contains("268435456 steps"));
  CHECK_THROWS_AS(PackedLayout::make({std::numeric_limits<std::int64_t>::max(), 1}), Error);
  CHECK_THROWS_AS(PackedLayout::make({PackedLayout::kMaxExtent + 1}, {.padded_length = huge}),
                  InvalidArgument);
  const Ints hostile(100, huge);  // their sum would overflow, too
  CHECK_THROWS_AS(PackedLayout::make(hostile), InvalidArgument);
}

TEST_CASE("totals beyond 2^31 are right") {
  const Ints lengths(4096, (1 << 20) + 3);
  const auto layout = PackedLayout::make(lengths);
  CHECK(layout->total() == 4096LL * ((1 << 20) + 3));
  CHECK(layout->row(4095, (1 << 20) + 2) == layout->total() - 1);
}

TEST_CASE("B29: a hand-made packed object is checked") {
  const auto make = [](const Ints& sizes, std::int64_t rows, const Ints& order = {}) {
    return PackedLayout::from_batch_sizes(sizes, rows, order);
  };
  CHECK_THROWS_AS(make({2, 1, 3}, 6), InvalidArgument);
  CHECK_THROWS_WITH(make({2, 1, 3}, 6), Contains("batch_sizes[2] is 3") && Contains("1 at"));
  CHECK_THROWS_WITH(make({3, 2}, 6), Contains("5") && Contains("6"));
  CHECK_THROWS_WITH(make({0}, 0), Contains("batch_sizes[0] is 0"));
  CHECK_THROWS_WITH(make({}, 0), Contains("empty"));
  CHECK_THROWS_WITH(make({2, -1}, 1), Contains("batch_sizes[1] is -1"));
  CHECK_THROWS_WITH(make({3, 1}, 4, {0, 1, 3}), Contains("sorted_indices[2] is 3"));
  CHECK_THROWS_WITH(make({3, 1}, 4, {0, -1, 2}), Contains("sorted_indices[1] is -1"));
  CHECK_THROWS_WITH(make({3, 1}, 4, {2, 0, 2}), Contains("sorted_indices[2] is 2, which"));
  CHECK_THROWS_WITH(make({3, 1}, 4, {1, 0}), Contains("2 entries") && Contains("3 sequences"));
  const auto good = make({3, 1}, 4, {2, 0, 1});
  CHECK(list(good->lengths()) == Ints{1, 1, 2});
  CHECK(list(good->unsorted_indices()) == Ints{1, 2, 0});
}

TEST_CASE("B29: sums beyond 2^31, and sizes that no memory can hold") {
  const Ints sizes(1 << 16, 1 << 16);
  const std::int64_t rows = std::int64_t{1} << 32;
  CHECK_THROWS_WITH(PackedLayout::from_batch_sizes(sizes, 0), Contains("4294967296"));
  CHECK_THROWS_AS(PackedLayout::from_batch_sizes(sizes, (1LL << 31) - 1), InvalidArgument);
  CHECK(PackedLayout::from_batch_sizes(sizes, rows)->total() == rows);
  const Ints huge(4, std::int64_t{1} << 62);  // their sum is 0 when it wraps
  CHECK_THROWS_WITH(PackedLayout::from_batch_sizes(huge, 0), Contains("4611686018427387904"));
}

TEST_CASE("B30: lengths of every dtype that counts") {
  const Ints expected{4, 0, 2};
  CHECK(list(Lengths(Tensor::from<std::int64_t>({4, 0, 2}, {3})).values()) == expected);
  CHECK(list(Lengths(Tensor::from<std::int32_t>({4, 0, 2}, {3})).values()) == expected);
  CHECK(list(Lengths(Tensor::from({4.0F, -0.0F, 2.0F}, {3})).values()) == expected);
  CHECK(list(Lengths(Tensor::from({4.0, 0.0, 2.0}, {3})).values()) == expected);
  CHECK(list(Lengths(std::vector<int>{4, 0, 2}).values()) == expected);
  CHECK(list(Lengths(std::span<const std::int64_t>(expected)).values()) == expected);
  CHECK_THROWS_WITH(Lengths(Tensor::zeros({2}, Dtype::f16)), Contains("f16"));
  CHECK_THROWS_WITH(Lengths(Tensor::from<std::int32_t>({1, -7}, {2})),
                    Contains("lengths[1] is -7"));
  CHECK_THROWS_WITH(Lengths(std::vector<int>{-2}), Contains("lengths[0] is -2"));
}

TEST_CASE("B30: fractions, NaN and Inf are refused with value and place, never truncated") {
  const auto refused = [](double value, const std::string& text) {
    CHECK_THROWS_AS(Lengths(Tensor::from({4.0, value, 1.0}, {3})), InvalidArgument);
    CHECK_THROWS_WITH(Lengths(Tensor::from({4.0, value, 1.0}, {3})),
                      Contains("lengths[1] is " + text));
  };
  refused(2.9, "2.9");
  refused(std::nan(""), "nan");
  refused(std::numeric_limits<double>::infinity(), "inf");
  refused(1e30, "1e+30");
  refused(-1.0, "-1");
  CHECK_THROWS_WITH(Lengths(Tensor::from({4.0F, 2.5F, 1.0F}, {3})), Contains("lengths[1] is 2.5"));
}

TEST_CASE("B30: lengths on another device are refused") {
  std::int64_t value = 1;
  CHECK_THROWS_WITH(Lengths(TensorView(&value, {1}, Dtype::i64, Device::cuda(1))),
                    Contains("cuda:1") && Contains("host"));
}

TEST_CASE("B30: the caller may overwrite its lengths at once") {
  Tensor lengths = Tensor::from<std::int64_t>({3, 1, 2}, {3});
  const Lengths copied(lengths);
  const auto layout = PackedLayout::make(lengths);
  for (std::int64_t& length : lengths.values<std::int64_t>()) length = -1;
  check_layout(*layout, {3, 1, 2});
  check_layout(*PackedLayout::make(copied), {3, 1, 2});
}

}  // namespace packrnn
