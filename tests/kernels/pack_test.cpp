#include "packrnn/kernels/pack.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "tests/catch.hpp"
#include "tests/kernels/device_tensors.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

Shape padded_shape(const Ints& lengths, std::int64_t T, bool batch_first, const Shape& row) {
  const auto N = static_cast<std::int64_t>(lengths.size());
  return batch_first ? row.prepend(T).prepend(N) : row.prepend(N).prepend(T);
}

std::vector<Tensor> scrambled_sequences(const Ints& lengths, const Shape& row, Dtype dtype) {
  std::vector<Tensor> sequences;
  for (std::size_t n = 0; n < lengths.size(); ++n)
    sequences.push_back(scrambled(row.prepend(lengths[n]), dtype, 77 + n));
  return sequences;
}

std::vector<Tensor> on_device(Context& context, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(context.to_device(tensor));
  return copies;
}

std::vector<TensorView> views(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

TEST_CASE("packing moves exactly the rows that a loop over the definition moves") {
  Context context;
  const bool batch_first = GENERATE(false, true);
  std::uint64_t seed = 1;
  for (const Ints& lengths : random_length_vectors()) {
    const auto dtype = kAllDtypes[seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const std::int64_t T = longest(lengths) + static_cast<std::int64_t>(seed % 3);
    const std::size_t row_bytes = static_cast<std::size_t>(row.elements()) * size_of(dtype);
    CAPTURE(lengths, dtype, row.str(), T);
    const auto layout = PackedLayout::make(lengths);
    const Tensor padded = scrambled(padded_shape(lengths, T, batch_first, row), dtype, ++seed);
    const Bytes expected = naive_pack(bytes_of(padded), lengths, T, batch_first, row_bytes);

    const Target packed(context, row.prepend(sum(lengths)), dtype);
    pack_padded(context, context.to_device(padded), *layout, batch_first, packed);
    REQUIRE(packed.bytes() == expected);
    REQUIRE(packed.guards_intact());

    const Target back(context, padded.shape(), dtype);
    unpack_padded(context, packed.span(), *layout, batch_first, 7.0, back);
    REQUIRE(back.bytes() ==
            naive_unpack(expected, lengths, T, batch_first, row_bytes, element_bytes(7.0, dtype)));
    REQUIRE(back.guards_intact());
  }
}

TEST_CASE("every dtype, trailing shape and layout packs and unpacks") {
  Context context;
  const bool batch_first = GENERATE(false, true);
  const Ints lengths = GENERATE(Ints{3, 6, 0, 1, 3}, Ints{6, 3, 3, 1, 0}, Ints{4, 4, 4});
  const std::int64_t T = 8;
  const auto layout = PackedLayout::make(lengths);
  for (const Dtype dtype : kAllDtypes) {
    for (const Shape& row : kRowShapes) {
      CAPTURE(lengths, dtype, row.str(), batch_first);
      const std::size_t row_bytes = static_cast<std::size_t>(row.elements()) * size_of(dtype);
      const Tensor padded = scrambled(padded_shape(lengths, T, batch_first, row), dtype, 5);
      const Target packed(context, row.prepend(layout->total()), dtype);
      pack_padded(context, context.to_device(padded), *layout, batch_first, packed);
      const Bytes expected = naive_pack(bytes_of(padded), lengths, T, batch_first, row_bytes);
      CHECK(packed.bytes() == expected);

      for (const double value : {0.0, -2.0, 1.0}) {
        const Target back(context, padded.shape(), dtype);
        unpack_padded(context, packed.span(), *layout, batch_first, value, back);
        CHECK(back.bytes() == naive_unpack(expected, lengths, T, batch_first, row_bytes,
                                           element_bytes(value, dtype)));
        CHECK(back.guards_intact());
      }
    }
  }
}

TEST_CASE("rows of every size move wherever they begin") {
  // Sizes and addresses that allow vectors of 16, 8, 4 and 2 bytes, and rows long enough that a
  // thread of a GPU has several of them.
  Context context;
  const Ints lengths = {5, 0, 9, 5, 2};
  const auto layout = PackedLayout::make(lengths);
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
    const std::size_t size = size_of(dtype);
    for (const std::int64_t width : {1, 2, 3, 4, 7, 8, 16, 31, 64, 129, 201, 515, 1024}) {
      for (const std::size_t shift : {std::size_t{0}, size, 8 * size}) {
        CAPTURE(dtype, width, shift);
        const bool batch_first = width % 2 == 0;
        const std::size_t row = static_cast<std::size_t>(width) * size;
        const Shape shape = padded_shape(lengths, 10, batch_first, {width});
        const Tensor padded = scrambled(shape, dtype, 5);
        const Bytes expected = naive_pack(bytes_of(padded), lengths, 10, batch_first, row);
        const Target from(context, shape, dtype, std::byte{0xFF}, shift);
        context.copy(context.to_device(padded), from.span());
        const Target packed(context, {layout->total(), width}, dtype, std::byte{0xFF}, shift);
        pack_padded(context, from.span(), *layout, batch_first, packed);
        CHECK(difference(packed.bytes(), expected) == "");
        CHECK(packed.guards_intact());
        const Target back(context, shape, dtype, std::byte{0xFF}, 0);
        unpack_padded(context, packed.span(), *layout, batch_first, 2.0, back);
        CHECK(difference(back.bytes(), naive_unpack(expected, lengths, 10, batch_first, row,
                                                    element_bytes(2.0, dtype))) == "");
        CHECK(back.guards_intact());
      }
    }
  }
}

TEST_CASE("lists of sequences pack, unpack and pad like the padded batch that holds them") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors()) {
    const auto dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const std::size_t row_bytes = static_cast<std::size_t>(row.elements()) * size_of(dtype);
    CAPTURE(lengths, dtype, row.str());
    const auto layout = PackedLayout::make(lengths);
    const std::vector<Tensor> sequences = scrambled_sequences(lengths, row, dtype);
    const std::vector<Tensor> inputs = on_device(context, sequences);

    Bytes expected;
    for (const Cell cell : naive_rows(lengths)) {
      const Bytes all = bytes_of(sequences[static_cast<std::size_t>(cell.sequence)]);
      const auto at = all.begin() + cell.step * static_cast<std::int64_t>(row_bytes);
      expected.insert(expected.end(), at, at + static_cast<std::int64_t>(row_bytes));
    }
    const Target packed(context, row.prepend(layout->total()), dtype);
    pack_sequences(context, views(inputs), *layout, packed);
    REQUIRE(packed.bytes() == expected);
    REQUIRE(packed.guards_intact());

    std::vector<std::unique_ptr<Target>> targets;
    std::vector<TensorSpan> spans;
    for (const Tensor& sequence : sequences) {
      targets.push_back(std::make_unique<Target>(context, sequence.shape(), dtype));
      spans.push_back(targets.back()->span());
    }
    unpack_sequences(context, packed.span(), *layout, spans);
    for (std::size_t n = 0; n < sequences.size(); ++n) {
      REQUIRE(targets[n]->bytes() == bytes_of(sequences[n]));
      REQUIRE(targets[n]->guards_intact());
    }

    for (const bool batch_first : {false, true}) {
      const std::int64_t T = longest(lengths) + 2;
      const Target padded(context, padded_shape(lengths, T, batch_first, row), dtype);
      pad_sequences(context, views(inputs), batch_first, 3.0, padded);
      REQUIRE(padded.bytes() == naive_unpack(expected, lengths, T, batch_first, row_bytes,
                                             element_bytes(3.0, dtype)));
      REQUIRE(padded.guards_intact());
    }
  }
}

TEST_CASE("the first and the last element of each sequence are picked") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors()) {
    const auto dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const auto row_bytes = row.elements() * static_cast<std::int64_t>(size_of(dtype));
    const auto layout = PackedLayout::make(lengths);
    const Tensor packed = scrambled(row.prepend(layout->total()), dtype, seed);
    const Bytes from = bytes_of(packed);
    const std::vector<Cell> rows = naive_rows(lengths);
    for (const bool last : {false, true}) {
      CAPTURE(lengths, dtype, row.str(), last);
      Bytes expected;
      for (std::size_t n = 0; n < lengths.size(); ++n) {
        const std::int64_t step = last ? lengths[n] - 1 : 0;
        const auto at = std::ranges::find_if(rows, [&](const Cell& cell) {
          return cell.sequence == static_cast<std::int64_t>(n) && cell.step == step;
        });
        if (at == rows.end()) {
          const Bytes value = element_bytes(-3.0, dtype);
          for (std::int64_t e = 0; e < row.elements(); ++e)
            expected.insert(expected.end(), value.begin(), value.end());
        } else {
          const auto begin = from.begin() + (at - rows.begin()) * row_bytes;
          expected.insert(expected.end(), begin, begin + row_bytes);
        }
      }
      const Target target(context, row.prepend(layout->batch()), dtype);
      pick_elements(context, context.to_device(packed), *layout, last, -3.0, target);
      REQUIRE(target.bytes() == expected);
      REQUIRE(target.guards_intact());
    }
  }
}

TEST_CASE("rows are put where the first or the last element of each sequence is") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(60)) {
    const Dtype dtype = kAllDtypes[++seed % kAllDtypes.size()];
    const Shape row = kRowShapes[seed % kRowShapes.size()];
    const auto layout = PackedLayout::make(lengths);
    const auto bytes = row.elements() * static_cast<std::int64_t>(size_of(dtype));
    const Tensor source = scrambled(row.prepend(layout->batch()), dtype, seed);
    const Bytes from = bytes_of(source);
    for (const bool last : {false, true}) {
      CAPTURE(lengths, dtype, row.str(), last);
      Bytes expected(static_cast<std::size_t>(layout->total() * bytes));
      for (std::int64_t n = 0; n < layout->batch(); ++n)
        if (const std::int64_t length = lengths[static_cast<std::size_t>(n)]; length > 0)
          std::copy_n(from.begin() + n * bytes, bytes,
                      expected.begin() + layout->row(n, last ? length - 1 : 0) * bytes);
      const Target packed(context, row.prepend(layout->total()), dtype);
      put_elements(context, context.to_device(source), *layout, last, packed);
      REQUIRE(packed.bytes() == expected);
      REQUIRE(packed.guards_intact());
    }
  }
}

TEST_CASE("columns are copied between rows of any width") {
  Context context;
  for (const Dtype dtype : kAllDtypes) {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    for (const auto& [from, to, width] :
         {std::array<std::int64_t, 3>{0, 0, 5}, {2, 1, 3}, {4, 0, 1}, {0, 4, 4}, {3, 3, 0}}) {
      CAPTURE(dtype, from, to, width);
      const Tensor source = scrambled({2, 3, 5}, dtype, 1), before = scrambled({6, 8}, dtype, 2);
      Bytes expected = bytes_of(before);
      const Bytes all = bytes_of(source);
      for (std::int64_t r = 0; r < 6; ++r)
        std::copy_n(all.begin() + (r * 5 + from) * size, width * size,
                    expected.begin() + (r * 8 + to) * size);
      const Target target(context, {6, 8}, dtype);
      context.copy(context.to_device(before), target.span());
      copy_columns(context, context.to_device(source), from, target, to, width);
      CHECK(target.bytes() == expected);
      CHECK(target.guards_intact());
    }
  }
  const Tensor source = context.zeros({2, 5}, Dtype::f32);
  const Target target(context, {2, 3}, Dtype::f32);
  check_throws([&] { copy_columns(context, source, 3, target, 0, 3); }, {"[3, 6)", "[2, 5]"});
}

TEST_CASE("gather assigns one row per index") {
  Context context;
  Random random(3);
  for (const Dtype dtype : kAllDtypes) {
    for (const Shape& row : kRowShapes) {
      const std::size_t row_bytes = static_cast<std::size_t>(row.elements()) * size_of(dtype);
      const Tensor table = scrambled(row.prepend(11), dtype, 9);
      const Bytes from = bytes_of(table);
      std::vector<std::int32_t> narrow;
      Ints wide;
      Bytes expected;
      for (int i = 0; i < 24; ++i) {
        wide.push_back(random.below(12) - 1);
        narrow.push_back(static_cast<std::int32_t>(wide.back()));
        if (wide.back() < 0) {
          for (std::int64_t e = 0; e < row.elements(); ++e) {
            const Bytes value = element_bytes(4.0, dtype);
            expected.insert(expected.end(), value.begin(), value.end());
          }
        } else {
          const auto at = from.begin() + wide.back() * static_cast<std::int64_t>(row_bytes);
          expected.insert(expected.end(), at, at + static_cast<std::int64_t>(row_bytes));
        }
      }
      const Shape shape = row.prepend(4).prepend(6);
      CAPTURE(dtype, row.str());
      const Tensor device_table = context.to_device(table);
      const Target a(context, shape, dtype);
      gather_rows(context, device_table, context.to_device(TensorView(wide.data(), {6, 4})), a,
                  4.0);
      CHECK(a.bytes() == expected);
      CHECK(a.guards_intact());
      const Target b(context, shape, dtype);
      gather_rows(context, device_table, context.to_device(TensorView(narrow.data(), {6, 4})), b,
                  4.0);
      CHECK(b.bytes() == expected);
    }
  }
}

TEST_CASE("gather names the position and value of a bad index") {
  Context context;
  const Tensor table = scrambled({5, 2}, Dtype::f32, 1), on_device = context.to_device(table);
  const Target target(context, {2, 3, 2}, Dtype::f32);
  const Bytes before = target.bytes();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  struct Case {
    std::int64_t index;
    std::optional<double> absent;
    const char* value;
  };
  for (const Case& one : {Case{5, {}, "5"}, Case{-1, {}, "-1"}, Case{-2, 0.0, "-2"},
                          Case{kMost, {}, "9223372036854775807"},
                          Case{4 + (std::int64_t{1} << 32), {}, "4294967300"}}) {
    CAPTURE(one.index);
    const Ints indices = {0, 1, 2, 3, one.index, 0};
    const Tensor view = context.to_device(TensorView(indices.data(), {2, 3}));
    const auto gather = [&] { gather_rows(context, on_device, view, target, one.absent); };
    if (!on_gpu(context)) {
      check_throws(gather, {"[1, 1]", one.value});
      CHECK(target.bytes() == before);  // nothing was written
    } else {
      gather();
      check_throws([&] { context.synchronize(); }, {"index 4", one.value, "5"});
      Bytes expected;  // the bad row is zero, the others are there
      for (const std::int64_t index : indices)
        for (std::int64_t b = 0; b < 8; ++b)
          expected.push_back(index == one.index
                                 ? std::byte{0}
                                 : bytes_of(table)[static_cast<std::size_t>(index * 8 + b)]);
      CHECK(target.bytes() == expected);
    }
  }
  if (on_gpu(context)) {  // of two, one is named, with its own value, and once
    const Ints both = {0, 1, 65, 3, 76, 0};
    gather_rows(context, on_device, context.to_device(TensorView(both.data(), {2, 3})), target);
    CHECK_THROWS_WITH(context.synchronize(),
                      (Catch::Contains("index 2") && Catch::Contains("65")) ||
                          (Catch::Contains("index 4") && Catch::Contains("76")));
    CHECK_NOTHROW(context.synchronize());
  }
  const Ints indices = {0, 1, 2, 3, 4, 0};  // and the next valid call works
  const Target next(context, {2, 3, 2}, Dtype::f32);
  gather_rows(context, on_device, context.to_device(TensorView(indices.data(), {2, 3})), next);
  CHECK(next.bytes() != before);

  const Tensor floats = context.zeros({2, 3}, Dtype::f32);
  check_throws([&] { gather_rows(context, on_device, floats, target); }, {"f32", "i64"});
}

TEST_CASE("features are joined side by side") {
  Context context;
  for (const Dtype dtype : kAllDtypes) {
    const Shape lead = GENERATE(Shape{4}, Shape{3, 2}, Shape{});
    const Ints widths = {1, 3, 0, 2};
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      Ints extents(lead.extents().begin(), lead.extents().end());
      extents.push_back(widths[i]);
      inputs.push_back(scrambled(Shape(extents), dtype, i + 1));
    }
    Bytes expected;
    for (std::int64_t r = 0; r < lead.elements(); ++r)
      for (std::size_t i = 0; i < widths.size(); ++i) {
        const Bytes all = bytes_of(inputs[i]);
        const auto width = widths[i] * static_cast<std::int64_t>(size_of(dtype));
        expected.insert(expected.end(), all.begin() + r * width, all.begin() + (r + 1) * width);
      }
    Ints extents(lead.extents().begin(), lead.extents().end());
    extents.push_back(6);
    const Target target(context, Shape(extents), dtype);
    const std::vector<Tensor> parts = on_device(context, inputs);
    concat_features(context, views(parts), target);
    CHECK(target.bytes() == expected);
    CHECK(target.guards_intact());
  }
}

TEST_CASE("more rows than a GPU has threads move in several rounds") {
  Context context;
  Random random(12);
  Ints lengths;
  for (int n = 0; n < 70; ++n) lengths.push_back(random.below(700));
  const auto layout = PackedLayout::make(lengths);
  const bool batch_first = GENERATE(false, true);
  for (const std::int64_t width : {1, 5}) {
    CAPTURE(batch_first, width);
    const std::size_t row = static_cast<std::size_t>(width) * 4;
    const Tensor padded =
        scrambled(padded_shape(lengths, 701, batch_first, {width}), Dtype::f32, 2);
    const Bytes expected = naive_pack(bytes_of(padded), lengths, 701, batch_first, row);
    const Target packed(context, {layout->total(), width}, Dtype::f32);
    pack_padded(context, context.to_device(padded), *layout, batch_first, packed);
    CHECK(difference(packed.bytes(), expected) == "");
    const Target back(context, padded.shape(), Dtype::f32);
    unpack_padded(context, packed.span(), *layout, batch_first, -1.0, back);
    CHECK(difference(back.bytes(), naive_unpack(expected, lengths, 701, batch_first, row,
                                                element_bytes(-1.0, Dtype::f32))) == "");
  }
}

TEST_CASE("1, 2 and 5 threads move the same bits") {
  if (on_gpu(Context())) PACKRNN_SKIP("threads of the CPU engine");
  // Large enough to be shared out; row sizes that take every way of copying.
  const Ints widths = {1, 2, 3, 4, 125};
  for (const std::int64_t width : widths) {
    const auto count = static_cast<std::size_t>(260 / width + 3);
    Random random(static_cast<std::uint64_t>(width));
    Ints lengths;
    for (std::size_t n = 0; n < count; ++n) lengths.push_back(random.below(700));
    if (width == 3) std::sort(lengths.rbegin(), lengths.rend());  // the path that moves whole steps
    const std::int64_t T = 703;
    const auto layout = PackedLayout::make(lengths);
    const std::size_t row = static_cast<std::size_t>(width) * 4;
    for (const bool batch_first : {false, true}) {
      const Tensor padded =
          scrambled(padded_shape(lengths, T, batch_first, {width}), Dtype::f32, 2);
      const Bytes expected = naive_pack(bytes_of(padded), lengths, T, batch_first, row);
      const Bytes restored =
          naive_unpack(expected, lengths, T, batch_first, row, element_bytes(-1.0, Dtype::f32));
      REQUIRE(expected.size() > 256 * 1024);
      std::vector<Tensor> sequences;
      for (const std::int64_t length : lengths)
        sequences.push_back(Tensor::empty({length, width}, Dtype::f32));
      const std::vector<TensorSpan> spans(sequences.begin(), sequences.end());
      Ints reversed(static_cast<std::size_t>(layout->total()));
      std::iota(reversed.rbegin(), reversed.rend(), 0);

      for (const int threads : {1, 2, 5}) {
        CAPTURE(width, batch_first, threads);
        Context context = cpu_context(threads);
        const Poisoned packed({layout->total(), width}, Dtype::f32);
        pack_padded(context, padded, *layout, batch_first, packed.span());
        CHECK(difference(packed.bytes(), expected) == "");

        const Poisoned back(padded.shape(), Dtype::f32);
        unpack_padded(context, packed.span(), *layout, batch_first, -1.0, back.span());
        CHECK(difference(back.bytes(), restored) == "");
        CHECK(back.guards_intact());

        unpack_sequences(context, packed.span(), *layout, spans);
        const Poisoned again({layout->total(), width}, Dtype::f32);
        pack_sequences(context, views(sequences), *layout, again.span());
        CHECK(difference(again.bytes(), expected) == "");

        const Poisoned lined_up(padded.shape(), Dtype::f32);
        pad_sequences(context, views(sequences), batch_first, -1.0, lined_up.span());
        CHECK(difference(lined_up.bytes(), restored) == "");

        const Poisoned turned({layout->total(), width}, Dtype::f32);
        const TensorView indices(reversed.data(), {layout->total()});
        gather_rows(context, packed.span(), indices, turned.span());
        const Poisoned turned_back({layout->total(), width}, Dtype::f32);
        gather_rows(context, turned.span(), indices, turned_back.span());
        CHECK(difference(turned_back.bytes(), expected) == "");

        const std::vector<TensorView> halves = {packed.span(), turned.span()};
        const Poisoned both({layout->total(), 2 * width}, Dtype::f32);
        concat_features(context, halves, both.span());
        const TensorView pairs = both.span().reshape({layout->total(), 2, width});
        for (const std::int64_t r : {std::int64_t{0}, layout->total() / 2, layout->total() - 1}) {
          const auto pair = pairs.rows(r, r + 1).reshape({2, width});
          CHECK(difference(bytes_of(pair.rows(0, 1)), bytes_of(packed.span().rows(r, r + 1))) ==
                "");
          CHECK(difference(bytes_of(pair.rows(1, 2)), bytes_of(turned.span().rows(r, r + 1))) ==
                "");
        }
      }
    }
  }
}

TEST_CASE("B32: every padded element is the padding value, whatever was there before") {
  Context context(Device::best(), {.threads = 2});
  for (const auto& [lengths, T] : {std::pair{Ints{2, 1}, 2},
                                   {Ints{2, 1}, 5},
                                   {Ints{2, 1}, 9},
                                   {Ints{0, 0, 0}, 4},
                                   {Ints{1, 2}, 9}}) {
    const auto layout = PackedLayout::make(lengths);
    for (const Dtype dtype : kAllDtypes) {
      for (const bool batch_first : {false, true}) {
        for (const double value : {0.0, -5.0}) {
          const Tensor packed = scrambled({layout->total(), 3}, dtype, 4);
          const Shape shape = padded_shape(lengths, T, batch_first, {3});
          const Tensor from = context.to_device(packed);
          const Target first(context, shape, dtype, std::byte{0xFF}),
              second(context, shape, dtype, std::byte{0x7E});
          unpack_padded(context, from, *layout, batch_first, value, first);
          unpack_padded(context, from, *layout, batch_first, value, second);
          CAPTURE(lengths, T, dtype, batch_first, value);
          CHECK(first.bytes() == naive_unpack(bytes_of(packed), lengths, T, batch_first,
                                              3 * size_of(dtype), element_bytes(value, dtype)));
          CHECK(first.bytes() == second.bytes());
        }
      }
    }
  }
}

TEST_CASE("a padding value is rounded to a floating dtype and must be exact in an integer one") {
  Context context;
  const auto layout = PackedLayout::make({0});
  const auto fill = [&](Dtype dtype, double value) {
    Tensor padded = context.zeros({1, 1}, dtype);
    unpack_padded(context, context.empty({0}, dtype), *layout, false, value, padded);
    return context.to_host(padded);
  };
  CHECK(fill(Dtype::f32, 0.1).values<float>()[0] == 0.1F);
  CHECK(fill(Dtype::f64, 0.1).values<double>()[0] == 0.1);
  CHECK(std::isinf(fill(Dtype::f32, 1e300).values<float>()[0]));
  CHECK(std::isnan(fill(Dtype::f64, std::nan("")).values<double>()[0]));
  CHECK(std::isnan(static_cast<float>(fill(Dtype::bf16, std::nan("")).values<BFloat16>()[0])));
  CHECK(fill(Dtype::f16, -1e9).values<Half>()[0].bits == 0xFC00);
  CHECK(fill(Dtype::i32, -2147483648.0).values<std::int32_t>()[0] ==
        std::numeric_limits<std::int32_t>::min());
  CHECK(fill(Dtype::i64, -0x1p63).values<std::int64_t>()[0] ==
        std::numeric_limits<std::int64_t>::min());
  check_throws([&] { fill(Dtype::i32, 0.5); }, {"padding_value", "0.5", "i32"});
  check_throws([&] { fill(Dtype::i32, 2147483648.0); }, {"padding_value", "2147483648", "i32"});
  check_throws([&] { fill(Dtype::i64, 0x1p63); }, {"padding_value", "i64"});
  check_throws([&] { fill(Dtype::i64, std::nan("")); }, {"padding_value", "nan"});
}

TEST_CASE("nothing to move is legal in every form") {
  Context context;
  for (const auto& [lengths, T] :
       {std::pair{Ints{}, 3}, {Ints{}, 0}, {Ints{0, 0}, 0}, {Ints{0, 0}, 4}}) {
    const auto layout = PackedLayout::make(lengths);
    for (const Shape& row : {Shape{}, Shape{3}, Shape{0}}) {
      for (const bool batch_first : {false, true}) {
        const Tensor padded = scrambled(padded_shape(lengths, T, batch_first, row), Dtype::f32, 1);
        Tensor packed = context.empty(row.prepend(0), Dtype::f32);
        pack_padded(context, context.to_device(padded), *layout, batch_first, packed);
        const Target back(context, padded.shape(), Dtype::f32);
        unpack_padded(context, packed, *layout, batch_first, 1.0, back);
        CHECK(back.bytes() == naive_unpack({}, lengths, T, batch_first,
                                           static_cast<std::size_t>(row.elements()) * 4,
                                           element_bytes(1.0, Dtype::f32)));
      }
    }
  }
}

TEST_CASE("arguments that do not fit are refused before anything is written") {
  Context context;
  const Device elsewhere = on_gpu(context) ? Device::cpu() : Device::cuda(1);
  const auto layout = PackedLayout::make({2, 1});
  const Tensor padded = context.zeros({2, 2, 3}, Dtype::f32);
  const Target packed(context, {3, 3}, Dtype::f32);
  const Bytes before = packed.bytes();
  const auto pack = [&](const TensorView& from, const TensorSpan& to) {
    return [&context, &layout, from, to] { pack_padded(context, from, *layout, false, to); };
  };
  check_throws(pack(TensorView{}, packed.span()), {"padded", "not defined"});
  check_throws(pack(padded, TensorSpan{}), {"packed", "missing"});
  check_throws(pack(context.zeros({2}, Dtype::f32), packed.span()), {"[2]", "2 or more"});
  check_throws(pack(context.zeros({2, 3, 3}, Dtype::f32), packed.span()), {"[2, 3, 3]", "3", "2"});
  check_throws(pack(context.zeros({1, 2, 3}, Dtype::f32), packed.span()), {"[1, 2, 3]", "1", "2"});
  check_throws(pack(context.zeros({2, 2, 4}, Dtype::f32), packed.span()), {"[3, 3]", "[3, 4]"});
  check_throws(pack(context.zeros({2, 2, 3}, Dtype::f64), packed.span()), {"f32", "f64"});
  check_throws(
      pack(TensorView(padded.view().raw(), padded.shape(), Dtype::f32, elsewhere), packed.span()),
      {"padded", elsewhere.name().c_str(), context.device().name().c_str()});
  if (on_gpu(context))
    check_throws(pack(TensorView(static_cast<const std::byte*>(padded.view().raw()) + 2, {2, 2, 2},
                                 Dtype::f32, context.device()),
                      packed.span()),
                 {"padded", "not aligned", "f32"});
  CHECK(packed.bytes() == before);

  const Tensor data = context.zeros({3, 3}, Dtype::f32);
  const Target target(context, {2, 2, 3}, Dtype::f32);
  const auto unpack = [&](const TensorView& from, const TensorSpan& to) {
    return [&context, &layout, from, to] { unpack_padded(context, from, *layout, false, 0, to); };
  };
  check_throws(unpack(context.zeros({4, 3}, Dtype::f32), target.span()), {"[4, 3]", "[3, 3]"});
  check_throws(unpack(data, Target(context, {1, 2, 3}, Dtype::f32).span()), {"1 steps", "2"});
  check_throws(unpack(data, Target(context, {2, 2, 2}, Dtype::f32).span()),
               {"[2, 2, 2]", "[2, 2, 3]"});

  const std::vector<TensorView> one = {data};
  check_throws([&] { pack_sequences(context, one, *layout, packed.span()); }, {"1", "2"});
  const std::vector<TensorView> wrong = {data, data};
  check_throws([&] { pack_sequences(context, wrong, *layout, packed.span()); },
               {"sequence 0", "3", "2"});
  const std::vector<TensorView> none;
  check_throws([&] { concat_features(context, none, packed.span()); }, {"inputs is empty"});
  check_throws([&] { concat_features(context, wrong, packed.span()); }, {"6 features", "[3, 3]"});
}

// Offsets beyond 2^31 and 2^32.
constexpr PaddedGrid kTimeMajor{.steps = 1 << 20, .batch = 1 << 20, .batch_first = false};
constexpr PaddedGrid kBatchFirst{.steps = 1 << 20, .batch = 1 << 20, .batch_first = true};
static_assert(kTimeMajor.row(5, (1 << 20) - 1) == ((std::int64_t{1} << 40) - (1 << 20)) + 5);
static_assert(kBatchFirst.row((1 << 20) - 1, 5) == ((std::int64_t{1} << 40) - (1 << 20)) + 5);
static_assert(kTimeMajor.row((1 << 20) - 1, (1 << 20) - 1) == (std::int64_t{1} << 40) - 1);

// Address space without memory: only pages that may be read are readable, and a touch of padding
// ends the process.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  }
  ~Reserved() {
    if (ok()) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  bool ok() const { return data_ != MAP_FAILED; }
  const void* data() const { return data_; }
  // Makes `count` integers at `offset` (bytes) readable and sets the first of them.
  void put(std::int64_t offset, std::int32_t value, std::int64_t count = 1) {
    const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
    auto* const data = static_cast<std::byte*>(data_);
    const std::int64_t start = offset / page * page;
    const auto size = static_cast<std::size_t>(offset + 4 * count - start);
    REQUIRE(mprotect(data + start, size, PROT_READ | PROT_WRITE) == 0);
    std::memcpy(data + offset, &value, sizeof value);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST_CASE("batches of many gigabytes are addressed right and their padding is not touched") {
  if (on_gpu(Context())) PACKRNN_SKIP("host memory that is reserved only");
  const std::int64_t T = (std::int64_t{1} << 30) + 1024;  // 4 GiB a sequence
  Reserved memory(static_cast<std::size_t>(3 * T * 4));
  if (!memory.ok()) PACKRNN_SKIP("no 12 GiB of address space");
  Context context = cpu_context();

  SECTION("pack, batch first") {
    memory.put(0, 10);
    memory.put(4, 11);
    memory.put(2 * T * 4, 30);
    const auto layout = PackedLayout::make({2, 0, 1});
    Tensor packed = Tensor::zeros({3}, Dtype::i32);
    pack_padded(context, TensorView(memory.data(), {3, T}, Dtype::i32), *layout, true, packed);
    CHECK(bytes_of(packed) == bytes_of(Tensor::from<std::int32_t>({10, 30, 11}, {3})));
  }
  SECTION("pack, time major") {
    // Only the last of 65536 sequences has elements; a row is 64 KiB, a step 4 GiB.
    const std::int64_t N = 65536, width = 16384;
    memory.put((N - 1) * width * 4, 10, width);
    memory.put((2 * N - 1) * width * 4, 11, width);
    Ints lengths(N, 0);
    lengths.back() = 2;
    const auto layout = PackedLayout::make(lengths);
    Tensor packed = Tensor::zeros({2, width}, Dtype::i32);
    pack_padded(context, TensorView(memory.data(), {2, N, width}, Dtype::i32), *layout, false,
                packed);
    CHECK(packed.values<std::int32_t>()[0] == 10);
    CHECK(packed.values<std::int32_t>()[static_cast<std::size_t>(width)] == 11);
  }
  SECTION("gather") {
    const Ints rows = {T - 1, 2 * T - 1, 3 * T - 1};
    for (std::int32_t i = 0; i < 3; ++i) memory.put(rows[static_cast<std::size_t>(i)] * 4, 10 + i);
    Tensor target = Tensor::zeros({3}, Dtype::i32);
    gather_rows(context, TensorView(memory.data(), {3 * T}, Dtype::i32),
                TensorView(rows.data(), {3}), target);
    CHECK(bytes_of(target) == bytes_of(Tensor::from<std::int32_t>({10, 11, 12}, {3})));
  }
}

}  // namespace
}  // namespace packrnn::kernels
