#include "packrnn/layers/packed_ops.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "packrnn/layers/packing.hpp"
#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

PackedSequence scrambled_packed(const Ints& lengths, const Shape& row, Dtype dtype,
                                std::uint64_t seed) {
  auto layout = PackedLayout::make(lengths);
  return {scrambled(row.prepend(layout->total()), dtype, seed), std::move(layout)};
}

// sequences [L_n] of small whole numbers, exact in every dtype.
PackedSequence small_numbers(Context& context, const std::vector<std::vector<float>>& sequences) {
  std::vector<Tensor> list;
  for (const auto& values : sequences)
    list.push_back(Tensor::from(values, {static_cast<std::int64_t>(values.size())}));
  const std::vector<TensorView> views(list.begin(), list.end());
  return host::pack_sequence(context, views);
}

std::vector<float> floats(const Tensor& tensor) {
  return {tensor.values<float>().begin(), tensor.values<float>().end()};
}

TEST_CASE("first and last elements of 200 random length vectors") {
  Context context = test_context();
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(on_device() ? 50 : 200)) {
    const Dtype dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const PackedSequence packed = scrambled_packed(lengths, row, dtype, seed);
    const std::vector<Tensor> sequences = host::unpack_sequence(context, packed);
    Bytes first, last;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      const Bytes own = bytes_of(sequences[n]);
      const auto size =
          static_cast<std::ptrdiff_t>(row.elements()) * static_cast<std::ptrdiff_t>(size_of(dtype));
      if (lengths[n] == 0) {
        for (std::int64_t e = 0; e < row.elements(); ++e) {
          const Bytes value = element_bytes(6.0, dtype);
          first.insert(first.end(), value.begin(), value.end());
          last.insert(last.end(), value.begin(), value.end());
        }
      } else {
        first.insert(first.end(), own.begin(), own.begin() + size);
        last.insert(last.end(), own.end() - size, own.end());
      }
    }
    CAPTURE(lengths, dtype, row.str());
    const Tensor got_first = host::first_element(context, packed, 6.0);
    REQUIRE(got_first.shape() == row.prepend(static_cast<std::int64_t>(lengths.size())));
    REQUIRE(bytes_of(got_first) == first);
    REQUIRE(bytes_of(host::last_element(context, packed, 6.0)) == last);
  }
}

TEST_CASE("B34: the last element is the last valid one, not the padding") {
  Context context = test_context();
  const Tensor padded = Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2});
  const PackedSequence packed = host::pack_padded_sequence(context, padded, {1, 3});
  CHECK(floats(host::last_element(context, packed)) == std::vector<float>{1, 6});
  CHECK(floats(host::first_element(context, packed)) == std::vector<float>{1, 2});
}

TEST_CASE("sum, mean and maximum per sequence, in the caller's order") {
  Context context = test_context();
  const PackedSequence packed = small_numbers(context, {{3, -1}, {}, {5, 7, 0, -2}, {-4}});
  CHECK(floats(host::sum_sequences(context, packed)) == std::vector<float>{2, 0, 10, -4});
  CHECK(floats(host::mean_sequences(context, packed)) == std::vector<float>{1, 0, 2.5F, -4});
  CHECK(floats(host::max_sequences(context, packed)) == std::vector<float>{3, 0, 7, -4});
  CHECK(floats(host::max_sequences(context, packed, -9.0)) == std::vector<float>{3, -9, 7, -4});
  CHECK(host::sum_sequences(context, packed).shape() == Shape{4});
}

TEST_CASE("B43: reductions never see padding or a neighbour's NaN") {
  Context context = test_context();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor padded = Tensor::from<float>({1, nan, 2, nan, 4, nan, nan, nan}, {2, 4});
  const PackedSequence packed =
      host::pack_padded_sequence(context, padded, {1, 1}, {.batch_first = true});
  CHECK(floats(host::sum_sequences(context, packed)) == std::vector<float>{1, 4});

  const PackedSequence one_bad = small_numbers(context, {{1, 2}, {nan, 3, 5}, {4}});
  for (const auto reduce : {host::sum_sequences, host::mean_sequences, host::max_sequences}) {
    const std::vector<float> got = floats(reduce(context, one_bad, 0.0));
    CHECK(std::isfinite(got[0]));
    CHECK(std::isnan(got[1]));
    CHECK(got[2] == 4);
  }
}

TEST_CASE("a sequence reduces to the same bits alone and in company") {
  Context context = test_context(2);
  Random random(4);
  Ints lengths;
  const int count = on_device() ? 12 : 64;
  for (int n = 0; n < count; ++n) lengths.push_back(random.below(on_device() ? 20 : 90));
  auto layout = PackedLayout::make(lengths);
  Tensor data = Tensor::empty({layout->total(), 33}, Dtype::f32);
  for (float& value : data.values<float>()) value = static_cast<float>(random.number());
  const PackedSequence packed(std::move(data), std::move(layout));
  const std::vector<Tensor> sequences = host::unpack_sequence(context, packed);
  for (const auto reduce : {host::sum_sequences, host::mean_sequences, host::max_sequences}) {
    const Tensor together = reduce(context, packed, 0.5);
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      const std::vector<TensorView> list = {sequences[n]};
      const Tensor alone = reduce(context, host::pack_sequence(context, list), 0.5);
      const auto row = static_cast<std::int64_t>(n);
      CHECK(bytes_of(alone) == bytes_of(together.view().rows(row, row + 1)));
    }
  }
}

TEST_CASE("features of several packed sequences are joined") {
  Context context = test_context();
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(on_device() ? 50 : 200)) {
    const Dtype dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const PackedSequence a = scrambled_packed(lengths, {2, 3}, dtype, seed);
    const PackedSequence b = scrambled_packed(lengths, {2, 1}, dtype, seed + 1000);
    const std::vector<const PackedSequence*> inputs = {&a, &b, &a};
    const PackedSequence joined = host::concat_features(context, inputs);
    REQUIRE(joined.data().shape() == Shape{sum(lengths), 2, 7});
    const Bytes from_a = bytes_of(a.data()), from_b = bytes_of(b.data());
    Bytes expected;
    const auto size = static_cast<std::ptrdiff_t>(size_of(dtype));
    for (std::ptrdiff_t r = 0; r < 2 * sum(lengths); ++r) {
      expected.insert(expected.end(), from_a.begin() + r * 3 * size,
                      from_a.begin() + (r + 1) * 3 * size);
      expected.insert(expected.end(), from_b.begin() + r * size, from_b.begin() + (r + 1) * size);
      expected.insert(expected.end(), from_a.begin() + r * 3 * size,
                      from_a.begin() + (r + 1) * 3 * size);
    }
    REQUIRE(bytes_of(joined.data()) == expected);
    REQUIRE(joined.layout_ptr() == a.layout_ptr());
  }
}

TEST_CASE("features are joined over one layout only") {
  Context context = test_context();
  const PackedSequence a = scrambled_packed({2, 1}, {3}, Dtype::f32, 1);
  const auto join = [&](const PackedSequence& other) {
    return [&context, &a, &other] {
      const std::vector<const PackedSequence*> inputs = {&a, &other};
      host::concat_features(context, inputs);
    };
  };
  check_throws(join(scrambled_packed({1, 2}, {3}, Dtype::f32, 1)), {"inputs[1]", "1 2", "2 1"});
  check_throws(join(scrambled_packed({2, 1}, {3}, Dtype::f64, 1)), {"f64", "f32"});
  check_throws(join(scrambled_packed({2, 1}, {2, 3}, Dtype::f32, 1)), {"[3, 2, 3]"});
  check_throws(join(scrambled_packed({2, 1}, {}, Dtype::f32, 1)), {"inputs[1]", "no feature"});
  check_throws(join(PackedSequence{}), {"inputs[1]", "not defined"});
  const std::vector<const PackedSequence*> none;
  check_throws([&] { host::concat_features(context, none); }, {"inputs is empty"});

  // Equal lengths, but another framework ordered the tie the other way: rows do not correspond.
  const Ints sizes = {2}, order = {1, 0};
  const PackedSequence ours(Tensor::zeros({2, 1}, Dtype::f32), PackedLayout::make({1, 1}));
  const PackedSequence theirs(Tensor::zeros({2, 1}, Dtype::f32),
                              PackedLayout::from_batch_sizes(sizes, 2, order));
  const std::vector<const PackedSequence*> both = {&ours, &theirs};
  check_throws([&] { host::concat_features(context, both); }, {"inputs[1]", "sorted order"});
}

TEST_CASE("a function is applied to every element, with any number of threads") {
  if (on_device()) PACKRNN_SKIP("the function is one of the host");
  const Ints lengths = {3000, 10, 0, 2500};
  for (const int threads : {1, 2, 5}) {
    Context context = cpu_context(threads);  // the function is one of the host
    auto layout = PackedLayout::make(lengths);
    Tensor data = Tensor::empty({layout->total(), 3}, Dtype::f32);
    for (std::size_t i = 0; i < data.values<float>().size(); ++i)
      data.values<float>()[i] = static_cast<float>(i);
    const PackedSequence packed(std::move(data), std::move(layout));
    const PackedSequence doubled =
        map_elements<float>(context, packed, [](float v) { return 2.0F * v; });
    REQUIRE(doubled.data().shape() == packed.data().shape());
    CHECK(doubled.layout_ptr() == packed.layout_ptr());
    bool all = true;
    for (std::size_t i = 0; i < doubled.data().values<float>().size(); ++i)
      all = all && doubled.data().values<float>()[i] == 2.0F * static_cast<float>(i);
    CHECK(all);

    CHECK_THROWS_AS(map_elements<float>(context, packed,
                                        [](float v) -> float {
                                          if (v == 12345.0F) throw std::runtime_error("no");
                                          return v;
                                        }),
                    std::runtime_error);
    check_throws([&] { map_elements<double>(context, packed, [](double v) { return v; }); },
                 {"f32", "f64"});
  }
  Context context = cpu_context();
  const PackedSequence none(Tensor::zeros({0, 2}, Dtype::i64), PackedLayout::make({0, 0}));
  CHECK(
      map_elements<std::int64_t>(context, none, [](std::int64_t v) { return v; }).data().shape() ==
      Shape{0, 2});
}

TEST_CASE("operations refuse what they cannot do") {
  Context context = test_context();
  const PackedSequence none;
  check_throws([&] { host::first_element(context, none); }, {"packed is not defined"});
  check_throws([&] { host::last_element(context, none); }, {"packed is not defined"});
  check_throws([&] { host::sum_sequences(context, none); }, {"packed is not defined"});
  const PackedSequence integers = scrambled_packed({2, 1}, {3}, Dtype::i32, 1);
  check_throws([&] { host::sum_sequences(context, integers); }, {"i32", "floating"});
  check_throws([&] { host::first_element(context, integers, 0.5); }, {"0.5", "i32"});
  CHECK(host::last_element(context, integers).dtype() == Dtype::i32);

  const PackedSequence empty(Tensor::zeros({0, 2}, Dtype::f32),
                             PackedLayout::make(std::vector<std::int64_t>{}));
  CHECK(host::sum_sequences(context, empty).shape() == Shape{0, 2});
  CHECK(host::last_element(context, empty).shape() == Shape{0, 2});
}

}  // namespace
}  // namespace packrnn
