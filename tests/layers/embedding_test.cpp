#include "packrnn/layers/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "packrnn/layers/packing.hpp"
#include "tests/catch.hpp"
#include "tests/layers/host_calls.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn {
namespace {

using namespace packrnn::tests;

Bytes row_of(const Embedding& layer, std::int64_t index) {
  return bytes_of(layer.parameters().value("weight").rows(index, index + 1));
}

// The rows of `indices`, one after another.
Bytes naive_lookup(const Embedding& layer, const Ints& indices) {
  Bytes rows;
  for (const std::int64_t index : indices) {
    const Bytes row = row_of(layer, index);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

TEST_CASE("Embedding looks rows up, for any shape of indices and every floating dtype") {
  Context context = test_context();
  Random random(8);
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16}) {
    for (const std::int64_t E : {1, 2, 4, 7, 64}) {
      const Embedding layer({.num_embeddings = 13, .embedding_dim = E, .dtype = dtype, .seed = 4});
      Ints indices;
      std::vector<std::int32_t> narrow;
      for (int i = 0; i < 30; ++i) {
        indices.push_back(random.below(13));
        narrow.push_back(static_cast<std::int32_t>(indices.back()));
      }
      const Bytes expected = naive_lookup(layer, indices);
      for (const Shape& shape : {Shape{30}, Shape{5, 6}, Shape{3, 2, 5}}) {
        Ints extents(shape.extents().begin(), shape.extents().end());
        extents.push_back(E);
        CAPTURE(dtype, E, shape.str());
        const Tensor wide = host::forward(context, layer, TensorView(indices.data(), shape));
        CHECK(wide.shape() == Shape(extents));
        CHECK(wide.dtype() == dtype);
        CHECK(bytes_of(wide) == expected);
        CHECK(bytes_of(host::forward(context, layer, TensorView(narrow.data(), shape))) ==
              expected);
      }
      const Tensor scalar = host::forward(context, layer, TensorView(indices.data(), Shape{}));
      CHECK(scalar.shape() == Shape{E});
      CHECK(bytes_of(scalar) == row_of(layer, indices[0]));
    }
  }
}

TEST_CASE("packed indices give packed vectors over the same layout; padding indices are not read") {
  Context context = test_context();
  const Embedding layer({.num_embeddings = 6, .embedding_dim = 3, .seed = 1});
  const std::int64_t bad = 1 << 30;  // would be refused if it were looked at
  const Tensor padded = Tensor::from<std::int64_t>({1, bad, bad, 5, 0, 2, bad, bad, bad}, {3, 3});
  const PackedSequence indices =
      host::pack_padded_sequence(context, padded, {1, 3, 0}, {.batch_first = true});
  const PackedSequence vectors = host::forward(context, layer, indices);
  CHECK(vectors.layout_ptr() == indices.layout_ptr());
  CHECK(vectors.data().shape() == Shape{4, 3});
  CHECK(bytes_of(vectors.data()) == naive_lookup(layer, {5, 1, 0, 2}));

  const PackedSequence none(Tensor::zeros({0}, Dtype::i32), PackedLayout::make({0, 0}));
  CHECK(host::forward(context, layer, none).data().shape() == Shape{0, 3});
}

TEST_CASE("Embedding starts from N(0, 1), with a padding row of zeros") {
  const Embedding layer({.num_embeddings = 1001,
                         .embedding_dim = 99,
                         .padding_idx = 3,
                         .dtype = Dtype::f64,
                         .seed = 12});
  REQUIRE(layer.state_dict("emb.").size() == 1);
  CHECK(layer.state_dict("emb.")[0].name == "emb.weight");
  CHECK(layer.parameters().value("weight").shape() == Shape{1001, 99});
  const TensorView weight = layer.parameters().value("weight");
  CHECK(std::ranges::all_of(weight.rows(3, 4).values<double>(), [](double v) { return v == 0; }));

  double moments[5] = {};
  double within_one = 0, most = 0, neighbours = 0, previous = 0;
  for (std::int64_t r = 0; r < 1001; ++r) {
    if (r == 3) continue;
    for (const double v : weight.rows(r, r + 1).values<double>()) {
      double power = 1;
      for (double& moment : moments) {
        moment += power;
        power *= v;
      }
      within_one += std::abs(v) < 1 ? 1 : 0;
      most = std::max(most, std::abs(v));
      neighbours += v * previous;
      previous = v;
    }
  }
  const double n = moments[0];
  REQUIRE(n == 99000);
  // Each statistic within five of its own standard deviations.
  CHECK(std::abs(moments[1] / n) < 5 / std::sqrt(n));
  CHECK(std::abs(moments[2] / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::abs(moments[3] / n) < 5 * std::sqrt(15 / n));
  CHECK(std::abs(moments[4] / n - 3) < 5 * std::sqrt(96 / n));
  CHECK(std::abs(within_one / n - 0.6826894921) < 5 * std::sqrt(0.2166 / n));
  CHECK(std::abs(neighbours / n) < 5 / std::sqrt(n));
  CHECK(most > 3.8);
  CHECK(most < 6.5);

  const auto weights = [](std::uint64_t seed, std::int64_t V) {
    const Embedding small({.num_embeddings = V, .embedding_dim = 3, .seed = seed});
    return bytes_of(small.parameters().value("weight").rows(0, 4));
  };
  CHECK(weights(1, 4) == weights(1, 4));
  CHECK(weights(1, 4) == weights(1, 9));  // an element depends on its own place only
  CHECK(weights(1, 4) != weights(2, 4));
}

TEST_CASE("B54: indices out of range are refused, long inputs and large tables are right") {
  Context context = test_context(2);
  const Embedding layer({.num_embeddings = 10, .embedding_dim = 8, .padding_idx = 0, .seed = 2});
  const std::vector<std::int64_t> counts =
      on_device() ? Ints{1, 769, 3073} : Ints{1, 768, 769, 3072, 3073, 70000};
  for (const std::int64_t count : counts) {
    CAPTURE(count);
    Ints indices(static_cast<std::size_t>(count), 0);
    const Shape shape{count};
    const Tensor zeros = host::forward(context, layer, TensorView(indices.data(), shape));
    CHECK(std::ranges::all_of(zeros.values<float>(), [](float v) { return v == 0.0F; }));
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i % 10);
    CHECK(difference(bytes_of(host::forward(context, layer, TensorView(indices.data(), shape))),
                     naive_lookup(layer, indices)) == "");
    for (const std::int64_t wrong :
         {std::int64_t{10}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
      indices.back() = wrong;
      // The host names the place in any shape; a GPU counts through.
      const std::string place = std::to_string(count - 1);
      const std::string position = on_device() ? "index " + place : place + "]";
      const std::string value = std::to_string(wrong);
      check_throws([&] { host::forward(context, layer, TensorView(indices.data(), shape)); },
                   {position.c_str(), value.c_str(), on_device() ? "less than 10" : "0 to 9"});
    }
    indices.back() = 9;
    CHECK(difference(bytes_of(host::forward(context, layer, TensorView(indices.data(), shape))),
                     naive_lookup(layer, indices)) == "");
  }
  for (const std::int64_t vocabulary : {70000, on_device() ? 70001 : 3000000}) {
    const Embedding large({.num_embeddings = vocabulary, .embedding_dim = 2, .seed = 3});
    const Ints indices = {vocabulary - 1, 0, 65535, 65536, vocabulary / 2};
    CHECK(bytes_of(host::forward(context, large, TensorView(indices.data(), {5}))) ==
          naive_lookup(large, indices));
  }
}

TEST_CASE("1, 2 and 5 threads look up the same bits") {
  const Embedding layer({.num_embeddings = 500, .embedding_dim = 50, .seed = 6});
  Random random(2);
  Ints indices;
  for (int i = 0; i < 5000; ++i) indices.push_back(random.below(500));
  const Bytes expected = naive_lookup(layer, indices);
  for (const int threads : {1, 2, 5}) {
    if (on_device() && threads > 1) continue;  // only the CPU engine has teams
    Context context = test_context(threads);
    const Tensor got = host::forward(context, layer, TensorView(indices.data(), {50, 100}));
    CHECK(difference(bytes_of(got), expected) == "");
  }
}

TEST_CASE("loaded rows are taken as they come, the padding row too") {
  Context context = test_context();
  Embedding layer({.num_embeddings = 2, .embedding_dim = 2, .padding_idx = 1});
  StateDict state;
  state.push_back({"weight", Tensor::from<double>({1, 2, 3, 4}, {2, 2})});
  layer.load(state);
  const Tensor y = host::forward(context, layer, Tensor::from<std::int32_t>({1, 0}, {2}));
  CHECK(std::ranges::equal(y.values<float>(), std::vector<float>{3, 4, 1, 2}));
}

TEST_CASE("Embedding refuses wrong options and inputs") {
  check_throws([] { Embedding({.num_embeddings = 0, .embedding_dim = 2}); },
               {"num_embeddings", "0"});
  check_throws([] { Embedding({.num_embeddings = 2, .embedding_dim = 0}); },
               {"embedding_dim", "0"});
  check_throws([] { Embedding({.num_embeddings = 2, .embedding_dim = 2, .padding_idx = 2}); },
               {"padding_idx", "2"});
  check_throws([] { Embedding({.num_embeddings = 2, .embedding_dim = 2, .padding_idx = -2}); },
               {"padding_idx", "-2"});
  check_throws([] { Embedding({.num_embeddings = 2, .embedding_dim = 2, .dtype = Dtype::i32}); },
               {"i32"});

  Context context = test_context();
  const Embedding layer({.num_embeddings = 4, .embedding_dim = 2});
  const Tensor floats = Tensor::zeros({3}, Dtype::f32);
  check_throws([&] { host::forward(context, layer, floats); }, {"indices", "f32", "i64"});
  check_throws([&] { host::forward(context, layer, TensorView{}); }, {"indices is not defined"});
  check_throws([&] { host::forward(context, layer, PackedSequence{}); },
               {"indices is not defined"});
  const TensorView far(floats.view().raw(), {3}, Dtype::i32, Device::cuda(7));
  const std::string here = context.device().name();
  check_throws([&] { layer.forward(context, far); }, {"cuda:7", here.c_str()});
}

}  // namespace
}  // namespace packrnn
