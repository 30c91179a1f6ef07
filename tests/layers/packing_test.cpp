#include "packrnn/layers/packing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

Shape padded_shape(std::size_t batch, std::int64_t T, bool batch_first, const Shape& row) {
  const auto N = static_cast<std::int64_t>(batch);
  return batch_first ? row.prepend(T).prepend(N) : row.prepend(N).prepend(T);
}

std::vector<TensorView> views(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

Ints ints(std::span<const std::int64_t> values) { return {values.begin(), values.end()}; }

// [T, N] whose element is 100 * sequence + step, so that a row says where it came from.
Tensor labelled(std::int64_t T, std::int64_t N) {
  Tensor padded = Tensor::empty({T, N}, Dtype::i64);
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t n = 0; n < N; ++n)
      padded.values<std::int64_t>()[static_cast<std::size_t>(t * N + n)] = 100 * n + t;
  return padded;
}

TEST_CASE("B23: 200 random length vectors come back in the caller's order") {
  Context context = test_context();
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(on_device() ? 50 : 200)) {
    const Dtype dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const bool batch_first = seed % 2 == 0;
    const std::size_t row_bytes = static_cast<std::size_t>(row.elements()) * size_of(dtype);
    const std::int64_t T = longest(lengths) + static_cast<std::int64_t>(seed % 3);
    CAPTURE(lengths, dtype, row.str(), batch_first, T);
    const Tensor padded = scrambled(padded_shape(lengths.size(), T, batch_first, row), dtype, seed);

    const PackedSequence packed =
        host::pack_padded_sequence(context, padded, lengths, {.batch_first = batch_first});
    const Bytes expected = naive_pack(bytes_of(padded), lengths, T, batch_first, row_bytes);
    REQUIRE(bytes_of(packed.data()) == expected);
    REQUIRE(packed.data().shape() == row.prepend(sum(lengths)));
    REQUIRE(ints(packed.lengths()) == lengths);
    REQUIRE(packed.layout().padded_length() == T);

    // Remembered length, the longest, and more.
    for (const std::int64_t total : {std::int64_t{-1}, longest(lengths), T + 4}) {
      const Tensor back = host::pad_packed_sequence(
          context, packed,
          {.batch_first = batch_first, .padding_value = 2.0, .total_length = total});
      const std::int64_t steps = total == -1 ? T : total;
      REQUIRE(back.shape() == padded_shape(lengths.size(), steps, batch_first, row));
      REQUIRE(bytes_of(back) == naive_unpack(expected, lengths, steps, batch_first, row_bytes,
                                             element_bytes(2.0, dtype)));
    }

    if (lengths.empty()) continue;
    const std::vector<Tensor> sequences = host::unpack_sequence(context, packed);
    REQUIRE(sequences.size() == lengths.size());
    for (std::size_t n = 0; n < lengths.size(); ++n)
      REQUIRE(sequences[n].shape() == row.prepend(lengths[n]));
    const PackedSequence again = host::pack_sequence(context, views(sequences));
    REQUIRE(bytes_of(again.data()) == expected);
    REQUIRE(ints(again.lengths()) == lengths);
    REQUIRE(again.layout().padded_length() == longest(lengths));
    REQUIRE(bytes_of(host::pad_sequence(context, views(sequences),
                                        {.batch_first = batch_first, .total_length = T})) ==
            bytes_of(host::pad_packed_sequence(context, packed, {.batch_first = batch_first})));
  }
}

TEST_CASE("B23: lengths 3 6 1 are sorted 1 0 2 with batch sizes 3 2 2 1 1 1") {
  Context context = test_context();
  const PackedSequence packed = host::pack_padded_sequence(context, labelled(6, 3), {3, 6, 1});
  CHECK(ints(packed.layout().sorted_indices()) == Ints{1, 0, 2});
  CHECK(ints(packed.layout().batch_sizes()) == Ints{3, 2, 2, 1, 1, 1});
  CHECK(ints(packed.data().values<std::int64_t>()) ==
        Ints{100, 0, 200, 101, 1, 102, 2, 103, 104, 105});
  // A permutation that is not its own inverse.
  const PackedSequence turned = host::pack_padded_sequence(context, labelled(3, 3), {1, 2, 3});
  CHECK(ints(turned.data().values<std::int64_t>()) == Ints{200, 100, 0, 201, 101, 202});
  const PackedSequence cycle = host::pack_padded_sequence(context, labelled(3, 3), {2, 3, 1});
  CHECK(ints(cycle.data().values<std::int64_t>()) == Ints{100, 0, 200, 101, 1, 102});
  const Tensor back = host::pad_packed_sequence(context, cycle, {.padding_value = -1});
  CHECK(ints(back.values<std::int64_t>()) == Ints{0, 100, 200, 1, 101, -1, -1, 102, -1});
}

TEST_CASE("B25: wrong lengths are refused with their values, and the next call works") {
  Context context = test_context();
  const Tensor x = labelled(4, 3);
  const auto pack = [&](Ints lengths, bool enforce_sorted = false) {
    return [&context, &x, lengths, enforce_sorted] {
      return host::pack_padded_sequence(context, x, lengths, {.enforce_sorted = enforce_sorted});
    };
  };
  check_throws(pack({4, 2, -1}), {"lengths[2]", "-1"});
  check_throws(pack({2, 4, 3}, true), {"lengths[1]", "4", "2", "enforce_sorted"});
  check_throws(pack({4, 2}), {"2 lengths", "[4, 3]", "3"});
  check_throws(pack({4, 2, 1, 1}), {"4 lengths", "3"});
  check_throws(pack({}), {"0 lengths", "3"});
  check_throws(pack({4, 5, 1}), {"lengths[1]", "5", "4 steps"});
  check_throws(pack({4, 1, std::numeric_limits<std::int64_t>::max()}),
               {"lengths[2]", "9223372036854775807"});
  const Ints grid = {4, 2, 1};
  check_throws(
      [&] {
        host::pack_padded_sequence(context, x, TensorView(grid.data(), {1, 3}));
      },
      {"lengths", "[1, 3]"});

  // Zero lengths are legal here, and so are lengths shorter than T everywhere.
  CHECK(ints(pack({4, 2, 0})().layout().batch_sizes()) == Ints{2, 2, 1, 1});
  CHECK(ints(pack({0, 2, 4})().layout().batch_sizes()) == Ints{2, 2, 1, 1});
  const PackedSequence early = pack({3, 2, 1}, true)();
  CHECK(ints(early.layout().batch_sizes()) == Ints{3, 2, 1});
  CHECK(early.layout().padded_length() == 4);
  CHECK(host::pad_packed_sequence(context, early).shape() == Shape{4, 3});
}

TEST_CASE("B26: zero-length sequences have no rows and all-padding columns") {
  Context context = test_context();
  for (const Ints& lengths : {Ints{5, 0, 5}, Ints{5, 0, 3}, Ints{3, 0, 5}, Ints{0, 0, 5}}) {
    const PackedSequence packed = host::pack_padded_sequence(context, labelled(5, 3), lengths);
    CHECK(packed.layout().total() == sum(lengths));
    const Tensor back = host::pad_packed_sequence(context, packed, {.padding_value = -1});
    for (std::size_t t = 0; t < 5; ++t) CHECK(back.values<std::int64_t>()[t * 3 + 1] == -1);
    CHECK(host::unpack_sequence(context, packed)[1].shape() == Shape{0});
  }
  SECTION("all zero") {
    const PackedSequence packed = host::pack_padded_sequence(context, labelled(4, 3), {0, 0, 0});
    CHECK(packed.layout().steps() == 0);
    CHECK(packed.data().shape() == Shape{0});
    const Tensor back = host::pad_packed_sequence(context, packed, {.padding_value = 8});
    CHECK(ints(back.values<std::int64_t>()) == Ints(12, 8));
    CHECK(host::pad_packed_sequence(context, packed, {.total_length = 0}).shape() == Shape{0, 3});
    CHECK(host::unpack_sequence(context, packed).size() == 3);
  }
  SECTION("no sequences, and no steps") {
    const Ints none;
    for (const std::int64_t T : {0, 4}) {
      const PackedSequence packed =
          host::pack_padded_sequence(context, Tensor::zeros({T, 0, 2}, Dtype::f32), none);
      CHECK(packed.layout().batch() == 0);
      CHECK(host::pad_packed_sequence(context, packed).shape() == Shape{T, 0, 2});
      CHECK(host::pad_packed_sequence(context, packed, {.batch_first = true, .total_length = 7})
                .shape() == Shape{0, 7, 2});
      CHECK(host::unpack_sequence(context, packed).empty());
    }
    const PackedSequence no_steps =
        host::pack_padded_sequence(context, Tensor::zeros({0, 2, 3}, Dtype::f32), {0, 0});
    CHECK(host::pad_packed_sequence(context, no_steps).shape() == Shape{0, 2, 3});
    CHECK(host::pad_packed_sequence(context, no_steps, {.total_length = 2}).shape() ==
          Shape{2, 2, 3});
  }
  SECTION("a list with empty sequences") {
    const std::vector<Tensor> list = [] {
      std::vector<Tensor> l;
      l.push_back(Tensor::zeros({0, 2}, Dtype::f32));
      l.push_back(Tensor::zeros({3, 2}, Dtype::f32));
      return l;
    }();
    const PackedSequence packed = host::pack_sequence(context, views(list));
    CHECK(ints(packed.lengths()) == Ints{0, 3});
    CHECK(host::pad_sequence(context, views(list)).shape() == Shape{3, 2, 2});
  }
}

TEST_CASE("B29: a hand-made packed object must be consistent") {
  Context context = test_context();
  const auto make = [](Ints sizes, Ints order = {}) {
    return [sizes, order] {
      return PackedSequence(Tensor::zeros({6, 2}, Dtype::f32),
                            PackedLayout::from_batch_sizes(sizes, 6, order));
    };
  };
  check_throws(make({2, 1, 3}), {"batch_sizes[2]", "3", "1"});
  check_throws(make({3, 2}), {"5", "6"});
  check_throws(make({0}), {"batch_sizes[0]", "0"});
  check_throws(make({}), {"batch_sizes", "empty"});
  check_throws(make({7, -1}), {"batch_sizes[1]", "-1"});
  check_throws(make({std::int64_t{1} << 62, std::int64_t{1} << 62, 1}), {"batch_sizes[0]"});
  check_throws(make({3, 2, 1}, {0, 1, 3}), {"sorted_indices[2]", "3"});
  check_throws(make({3, 2, 1}, {0, 1, 1}), {"sorted_indices[2]", "1", "twice"});
  check_throws(make({3, 2, 1}, {0, 1, -1}), {"sorted_indices[2]", "-1"});
  check_throws(make({3, 2, 1}, {0, 1}), {"sorted_indices", "2", "3"});

  const auto layout = PackedLayout::make({3, 2, 1});
  check_throws([&] { PackedSequence(Tensor::zeros({5, 2}, Dtype::f32), layout); }, {"[5, 2]", "6"});
  check_throws([&] { PackedSequence(Tensor::zeros({}, Dtype::f32), layout); }, {"[]", "6"});
  check_throws([&] { PackedSequence(Tensor{}, layout); }, {"data", "not defined"});
  check_throws(
      [&] {
        PackedSequence(Tensor::zeros({6, 2}, Dtype::f32), nullptr);
      },
      {"layout is null"});

  // Sound ones unpack: lengths 1 3 2 in the caller's order.
  Tensor data = Tensor::from<float>({0, 1, 2, 3, 4, 5}, {6});
  const Ints sizes = {3, 2, 1}, order = {1, 2, 0};
  const PackedSequence packed(std::move(data), PackedLayout::from_batch_sizes(sizes, 6, order));
  CHECK(ints(packed.lengths()) == Ints{1, 3, 2});
  const Tensor back =
      host::pad_packed_sequence(context, packed, {.batch_first = true, .padding_value = -1});
  CHECK(std::ranges::equal(back.values<float>(), std::vector<float>{2, -1, -1, 0, 3, 5, 1, 4, -1}));
}

TEST_CASE("B30: lengths come as any integers or whole numbers, and are copied") {
  Context context = test_context();
  const Tensor x = labelled(4, 3);
  const Ints expected = {4, 2, 1};
  const Tensor i32 = Tensor::from<std::int32_t>({4, 2, 1}, {3});
  const Tensor i64 = Tensor::from<std::int64_t>({4, 2, 1}, {3});
  const Tensor f32 = Tensor::from<float>({4, 2, 1}, {3});
  const Tensor f64 = Tensor::from<double>({4, 2, 1}, {3});
  for (const Tensor* lengths : {&i32, &i64, &f32, &f64})
    CHECK(ints(host::pack_padded_sequence(context, x, *lengths).lengths()) == expected);
  CHECK(ints(host::pack_padded_sequence(context, x, std::vector<int>{4, 2, 1}).lengths()) ==
        expected);

  const auto refused = [&](double value) {
    return thrown([&] {
      host::pack_padded_sequence(context, x, Tensor::from<double>({4, value, 1}, {3}));
    });
  };
  for (const auto& [value, text] : {std::pair{2.9, "2.9"},
                                    {std::nan(""), "nan"},
                                    {std::numeric_limits<double>::infinity(), "inf"},
                                    {-2.0, "-2"}}) {
    const std::string message = refused(value);
    INFO(message);
    CHECK(message.find("lengths[1]") != std::string::npos);
    CHECK(message.find(text) != std::string::npos);
  }
  const TensorView far(i64.view().raw(), {3}, Dtype::i64, Device::cuda(7));
  check_throws([&] { host::pack_padded_sequence(context, x, far); }, {"lengths", "cuda:7"});

  Ints mine = expected;
  const PackedSequence packed =
      host::pack_padded_sequence(context, x, std::span<const std::int64_t>(mine));
  const Bytes before = bytes_of(host::pad_packed_sequence(context, packed));
  mine = {0, 0, 0};
  CHECK(ints(packed.lengths()) == expected);
  CHECK(bytes_of(host::pad_packed_sequence(context, packed)) == before);
}

TEST_CASE("B31: a clone is whole and a moved-from packed sequence is empty") {
  Context context = test_context();
  PackedSequence packed = host::pack_padded_sequence(context, labelled(6, 3), {3, 1, 6});
  const Bytes expected = bytes_of(host::pad_packed_sequence(context, packed));
  PackedSequence copy = packed.clone();
  CHECK(copy.data().raw() != packed.data().raw());
  CHECK(bytes_of(host::pad_packed_sequence(context, copy)) == expected);

  const PackedSequence moved = std::move(packed);
  CHECK_FALSE(packed.defined());  // NOLINT(bugprone-use-after-move)
  CHECK_FALSE(packed.data().defined());
  CHECK(bytes_of(host::pad_packed_sequence(context, moved)) == expected);
  check_throws([&] { host::pad_packed_sequence(context, packed); }, {"packed is not defined"});
  check_throws([&] { host::unpack_sequence(context, packed); }, {"packed is not defined"});

  const Tensor data = std::move(copy).take_data();
  CHECK(data.shape() == Shape{10});
  CHECK_FALSE(copy.defined());  // NOLINT(bugprone-use-after-move)
}

TEST_CASE("B32: padded positions hold the padding value, also past every sequence") {
  Context context = test_context();
  const Tensor x = labelled(2, 2);
  for (const std::int64_t total : {2, 5, 9}) {
    const PackedSequence packed = host::pack_padded_sequence(context, x, {2, 1});
    const Tensor back =
        host::pad_packed_sequence(context, packed, {.padding_value = -3, .total_length = total});
    REQUIRE(back.shape() == Shape{total, 2});
    Ints expected(static_cast<std::size_t>(2 * total), -3);
    expected[0] = 0;
    expected[1] = 100;
    expected[2] = 1;
    CHECK(ints(back.values<std::int64_t>()) == expected);
  }
}

TEST_CASE("B33: sixteen unsorted lengths from 4 to 64, packed and back in both layouts") {
  Context context = test_context(2);
  const Ints lengths = {12, 32, 4, 52, 8, 64, 20, 36, 48, 40, 24, 60, 44, 16, 28, 56};
  for (const bool batch_first : {false, true}) {
    const Tensor padded = scrambled(padded_shape(16, 64, batch_first, {16}), Dtype::f32, 3);
    const PackedSequence packed =
        host::pack_padded_sequence(context, padded, lengths, {.batch_first = batch_first});
    const Bytes expected = naive_pack(bytes_of(padded), lengths, 64, batch_first, 64);
    CHECK(difference(bytes_of(packed.data()), expected) == "");
    // Out in the other layout than in.
    const Tensor back = host::pad_packed_sequence(context, packed, {.batch_first = !batch_first});
    CHECK(bytes_of(back) ==
          naive_unpack(expected, lengths, 64, !batch_first, 64, element_bytes(0.0, Dtype::f32)));
  }
}

TEST_CASE("B43: a sequence's rows do not depend on its neighbours, nor on what the padding holds") {
  Context context = test_context();
  const Ints lengths = {9, 4, 9, 1};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const bool batch_first : {false, true}) {
    const auto make = [&](float padding, float neighbour) {
      Tensor padded = Tensor::empty(padded_shape(4, 10, batch_first, {2}), Dtype::f32);
      for (std::int64_t n = 0; n < 4; ++n)
        for (std::int64_t t = 0; t < 10; ++t)
          for (std::int64_t f = 0; f < 2; ++f) {
            const bool valid = t < lengths[static_cast<std::size_t>(n)];
            const auto i =
                static_cast<std::size_t>(naive_place({n, t}, 10, 4, batch_first) * 2 + f);
            const auto own = static_cast<float>(100 * n + 2 * t + f);
            padded.values<float>()[i] = !valid ? padding : n == 1 ? neighbour : own;
          }
      return padded;
    };
    const auto rows = [&](float padding, float neighbour) {
      const PackedSequence packed = host::pack_padded_sequence(
          context, make(padding, neighbour), lengths, {.batch_first = batch_first});
      return host::unpack_sequence(context, packed);
    };
    const auto clean = rows(0.0F, 1.0F);
    for (const float padding : {nan, inf}) {
      const auto dirty = rows(padding, nan);
      for (const std::size_t n : {0U, 2U, 3U}) CHECK(bytes_of(dirty[n]) == bytes_of(clean[n]));
      const PackedSequence packed = host::pack_padded_sequence(
          context, make(padding, 1.0F), lengths, {.batch_first = batch_first});
      CHECK(std::ranges::all_of(packed.data().values<float>(),
                                [](float v) { return std::isfinite(v); }));
      CHECK(std::ranges::all_of(host::pad_packed_sequence(context, packed).values<float>(),
                                [](float v) { return std::isfinite(v); }));
    }
  }
}

TEST_CASE("B01: total_length below the longest sequence is refused, 0 included") {
  Context context = test_context();
  const PackedSequence packed = host::pack_padded_sequence(context, labelled(8, 4), {6, 4, 2, 1});
  for (const auto& [total, text] : {std::pair{5, "5"}, {0, "0"}, {-2, "-2"}})
    check_throws([&] { host::pad_packed_sequence(context, packed, {.total_length = total}); },
                 {"total_length", text, "6"});
  CHECK(host::pad_packed_sequence(context, packed, {.total_length = 6}).shape() == Shape{6, 4});
  CHECK(host::pad_packed_sequence(context, packed).shape() == Shape{8, 4});

  const std::vector<Tensor> sequences = host::unpack_sequence(context, packed);
  check_throws([&] { host::pad_sequence(context, views(sequences), {.total_length = 5}); },
               {"total_length", "5", "6"});
}

TEST_CASE("sequence names follow the sequences") {
  Context context = test_context();
  const PackedSequence packed = host::pack_padded_sequence(context, labelled(3, 3), {1, 3, 2},
                                                           {.sequence_ids = {70, 71, 72}});
  CHECK(ints(packed.layout().sequence_ids()) == Ints{70, 71, 72});
  check_throws(
      [&] {
        host::pack_padded_sequence(context, labelled(3, 3), {1, 3, 2}, {.sequence_ids = {70, 71}});
      },
      {"sequence_ids", "2", "3"});
}

TEST_CASE("padded data and lists must have the right form") {
  Context context = test_context();
  const Tensor flat = Tensor::zeros({4}, Dtype::f32);
  check_throws([&] { host::pack_padded_sequence(context, flat, {4}); }, {"[4]", "[T, N, ...]"});
  check_throws([&] { host::pack_padded_sequence(context, flat, {4}, {.batch_first = true}); },
               {"[4]", "[N, T, ...]"});
  check_throws([&] { host::pack_padded_sequence(context, TensorView{}, {4}); },
               {"padded is not defined"});

  const std::vector<TensorView> none;
  check_throws([&] { host::pack_sequence(context, none); }, {"sequences is empty"});
  check_throws([&] { host::pad_sequence(context, none); }, {"sequences is empty"});

  const Tensor a = Tensor::zeros({2, 3}, Dtype::f32), b = Tensor::zeros({2, 4}, Dtype::f32),
               c = Tensor::zeros({2, 3}, Dtype::f64), d = Tensor::zeros({}, Dtype::f32);
  for (const bool pack : {true, false}) {
    const auto run = [&](const TensorView& second) {
      return [&context, &a, second, pack] {
        const std::vector<TensorView> list = {a, second};
        if (pack)
          host::pack_sequence(context, list);
        else
          host::pad_sequence(context, list);
      };
    };
    check_throws(run(b), {"sequences[1]", "[2, 4]", "[2, 3]"});
    check_throws(run(c), {"sequences[1]", "f64", "f32"});
    check_throws(run(d), {"sequences[1]", "scalar"});
    check_throws(run(TensorView{}), {"sequences[1]", "not defined"});
  }
  const Tensor e = Tensor::zeros({3, 3}, Dtype::f32);
  const std::vector<TensorView> rising = {a, e};
  check_throws([&] { host::pack_sequence(context, rising, {.enforce_sorted = true}); },
               {"lengths[1]", "3", "2"});
}

TEST_CASE("a batch too large for memory is refused, and the context works on") {
  Context context = test_context();
  const PackedSequence packed = host::pack_padded_sequence(context, labelled(2, 2), {2, 1});
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK_THROWS_AS(host::pad_packed_sequence(context, packed, {.total_length = most}), Error);
  CHECK_THROWS_AS(host::pad_packed_sequence(context, packed, {.total_length = most / 32}), Error);
  CHECK(host::pad_packed_sequence(context, packed).shape() == Shape{2, 2});
}

TEST_CASE("one packed sequence serves several threads, each with its own context") {
  Context main_context = test_context();
  const Ints lengths = {40, 3, 77, 0, 12};
  const Tensor padded = scrambled({80, 5, 16}, Dtype::f32, 12);
  const PackedSequence packed = host::pack_padded_sequence(main_context, padded, lengths);
  const Bytes expected = bytes_of(host::pad_packed_sequence(main_context, packed));
  std::vector<int> same(4, 0);
  std::vector<std::thread> threads;
  for (int& result : same)
    threads.emplace_back([&packed, &expected, &result] {
      Context context = test_context(2);
      result = 1;
      for (int i = 0; i < 20; ++i)
        result &= bytes_of(host::pad_packed_sequence(context, packed)) == expected ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(same == std::vector<int>(4, 1));
}

}  // namespace
}  // namespace packrnn
