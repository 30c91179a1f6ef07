#include "packrnn/kernels/layout.hpp"

#include <numeric>
#include <thread>

#include "packrnn/kernels/cuda/layout.hpp"
#include "packrnn/kernels/dropout.hpp"
#include "packrnn/kernels/pack.hpp"
#include "packrnn/kernels/reduce.hpp"
#include "packrnn/runtime/device_layout.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "packrnn/runtime/graph.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/device_tensors.hpp"
#include "tests/packing_cases.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

// What stands in the tables on the device.
struct Tables {
  Ints lengths, batch_sizes, offsets, sorted, unsorted, ids;
  std::int64_t steps = 0;
};

template <class T>
Ints read(Context& context, const T* data, std::int64_t count) {
  if (count == 0) return {};
  const Tensor host = context.to_host(TensorView(data, {count}, kDtypeOf<T>, context.device()));
  const auto values = host.values<T>();
  return {values.begin(), values.end()};
}

Tables read(Context& context, const DeviceLayout& layout) {
  return {.lengths = read(context, layout.lengths, layout.batch),
          .batch_sizes = read(context, layout.batch_sizes, layout.steps_capacity),
          .offsets = read(context, layout.offsets, layout.steps_capacity + 1),
          .sorted = read(context, layout.sorted_indices, layout.batch),
          .unsorted = read(context, layout.unsorted_indices, layout.batch),
          .ids = read(context, layout.sequence_ids, layout.batch),
          .steps = read(context, layout.steps, 1)[0]};
}

Ints values(std::span<const std::int64_t> span) { return {span.begin(), span.end()}; }

// The tables against the host's layout of the same lengths; behind its steps there are only zeros
// and the total.
void check_tables(const Tables& got, const PackedLayout& expected, const Ints& ids) {
  Ints lengths;
  for (const std::int64_t n : expected.sorted_indices())
    lengths.push_back(expected.lengths()[static_cast<std::size_t>(n)]);
  CHECK(got.lengths == lengths);
  CHECK(got.sorted == values(expected.sorted_indices()));
  CHECK(got.unsorted == values(expected.unsorted_indices()));
  CHECK(got.ids == ids);
  CHECK(got.steps == expected.steps());
  Ints sizes = values(expected.batch_sizes()), offsets = values(expected.offsets());
  sizes.resize(got.batch_sizes.size(), 0);
  offsets.resize(got.offsets.size(), expected.total());
  CHECK(got.batch_sizes == sizes);
  CHECK(got.offsets == offsets);
}

Tensor lengths_on(Context& context, const Ints& lengths, Dtype dtype) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  return context.to_device(convert(TensorView(lengths.data(), {count}, Dtype::i64), dtype));
}

Ints count_up(std::int64_t count) {
  Ints ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST_CASE("a layout from the host has its tables on the device") {
  Context context;
  if (!on_gpu(context)) {
    check_throws([&] { PackedLayout::make({2, 1})->on(context); }, {"cpu"});
    PACKRNN_SKIP("no device");
  }
  for (const Ints& lengths : random_length_vectors()) {
    CAPTURE(lengths);
    const Ints ids(lengths.size(), -7);
    const auto layout = PackedLayout::make(lengths, {.sequence_ids = ids});
    const DeviceLayout& tables = layout->on(context);
    CHECK(tables.batch == layout->batch());
    CHECK(tables.steps_capacity == layout->steps());
    CHECK(tables.rows_capacity == layout->total());
    check_tables(read(context, tables), *layout, ids);
    CHECK(&layout->on(context) == &tables);  // uploaded once
  }
}

TEST_CASE("one layout serves contexts of several threads at once") {
  if (!on_gpu(Context())) PACKRNN_SKIP("no device");
  const Ints lengths = {3, 1, 4, 1, 5, 9, 2, 6};
  PackedLayoutPtr layout = PackedLayout::make(lengths);
  const Tensor padded = scrambled({9, 8, 3}, Dtype::f32, 1);
  const Bytes expected = naive_pack(bytes_of(padded), lengths, 9, false, 12);
  std::vector<Bytes> got(3);
  std::vector<std::thread> threads;
  for (Bytes& result : got)
    threads.emplace_back([&result, &padded, layout]() mutable {
      Context context;
      Tensor packed = context.empty({layout->total(), 3}, Dtype::f32);
      pack_padded(context, context.to_device(padded), *layout, false, packed);
      layout.reset();  // while the kernel may be under way
      result = bytes_on(context, packed);
    });
  layout.reset();
  for (std::thread& thread : threads) thread.join();
  for (const Bytes& result : got) CHECK(result == expected);
}

TEST_CASE("a layout made from lengths on the device is the host's") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors()) {
    const Dtype dtype = ++seed % 2 == 0 ? Dtype::i32 : Dtype::i64;
    const auto batch = static_cast<std::int64_t>(lengths.size());
    const std::int64_t T = longest(lengths) + static_cast<std::int64_t>(seed % 3);
    CAPTURE(lengths, dtype, T);
    const auto expected = PackedLayout::make(lengths, {.padded_length = T});
    Ints ids = count_up(batch);
    LayoutCapacity capacity{.padded_length = T};
    Tensor given;
    if (seed % 4 == 0) {
      for (auto& id : ids) id = (id << 33) - 1;
      given = context.to_device(TensorView(ids.data(), {batch}));
      capacity.sequence_ids = given;
    }
    const auto layout = make_layout(context, lengths_on(context, lengths, dtype), capacity);
    CHECK(layout->batch() == batch);
    CHECK(layout->padded_length() == T);
    if (!on_gpu(context)) {
      CHECK(layout->known());
      CHECK(values(layout->sorted_indices()) == values(expected->sorted_indices()));
      CHECK(values(layout->sequence_ids()) == ids);
      continue;
    }
    CHECK(!layout->known());
    CHECK(layout->steps() == T);
    CHECK(layout->total() == batch * T);
    check_tables(read(context, layout->on(context)), *expected, ids);
  }
}

// Lengths of a batch, of which `kind` says how they lie.
Ints many_lengths(std::int64_t batch, std::int64_t T, int kind) {
  Random random(static_cast<std::uint64_t>(batch + 100 * kind));
  Ints lengths;
  for (std::int64_t n = 0; n < batch; ++n) lengths.push_back(random.below(T + 1));
  if (kind == 1) std::sort(lengths.begin(), lengths.end());
  if (kind == 2) std::sort(lengths.rbegin(), lengths.rend());
  if (kind == 3)  // ties
    for (auto& length : lengths) length = length % 3;
  if (kind == 4) std::fill(lengths.begin(), lengths.end(), T);
  return lengths;
}

TEST_CASE("both ways of sorting on the device give the host's order") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("no device");
  unsigned combination = 0;
  for (const std::int64_t batch : {1, 2, 31, 255, 256, 257, 700, 1100}) {
    for (const std::int64_t T : {1, 5, 300, 2500}) {
      for (const int kind : {0, 1, 2, 3, 4}) {
        if (batch > 257 && (kind > 0 ? T != 300 : T == 2500)) continue;
        if (left_out(combination++, 3)) continue;
        const Ints lengths = many_lengths(batch, T, kind);
        const auto expected = PackedLayout::make(lengths, {.padded_length = T});
        const Tensor device_lengths = lengths_on(context, lengths, Dtype::i32);
        for (const std::int32_t ranked : {0, cuda::kRankedBatch}) {
          CAPTURE(batch, T, kind, ranked);
          Tensor memory = context.empty({DeviceLayout::words(batch, T)}, Dtype::i64);
          const cuda::LayoutJob job{
              .lengths = device_lengths.view().raw(),
              .tables = DeviceLayout::in(memory.span().raw(), batch, T, batch * T),
              .fault = context.fault()};
          Workspace::Scope scope(context.workspace());
          cuda::make_layout(
              context.stream(), job,
              scope.take<std::uint32_t>(cuda::layout_scratch(job.tables.batch, ranked)).data(),
              ranked);
          check_tables(read(context, job.tables), *expected, count_up(batch));
        }
      }
    }
  }
}

TEST_CASE("everything on rows works with a layout that the host does not know") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors()) {
    if (++seed % 4 != 0) continue;
    const auto batch = static_cast<std::int64_t>(lengths.size());
    const bool batch_first = seed % 8 == 0;
    const std::int64_t T = longest(lengths) + 1, rows = sum(lengths) + 2;
    CAPTURE(lengths, batch_first);
    const auto known = PackedLayout::make(lengths, {.padded_length = T});
    const auto layout = make_layout(context, lengths_on(context, lengths, Dtype::i64),
                                    {.padded_length = T, .rows = rows});
    const std::int64_t total = layout->total();
    REQUIRE(total == (on_gpu(context) ? std::min(rows, batch * T) : known->total()));

    const Shape shape = PaddedGrid{T, batch, batch_first}.shape({5});
    const Tensor padded = context.to_device(scrambled(shape, Dtype::f32, seed));
    const Target packed(context, {total, 5}, Dtype::f32);
    pack_padded(context, padded, *layout, batch_first, packed);
    Bytes expected = naive_pack(bytes_on(context, padded), lengths, T, batch_first, 20);
    const Bytes only = expected;
    expected.resize(static_cast<std::size_t>(total) * 20);  // spare rows are zero
    CHECK(packed.bytes() == expected);
    CHECK(packed.guards_intact());

    const Target back(context, shape, Dtype::f32);
    unpack_padded(context, packed.span(), *layout, batch_first, 2.0, back);
    CHECK(back.bytes() ==
          naive_unpack(only, lengths, T, batch_first, 20, element_bytes(2.0, Dtype::f32)));
    CHECK(back.guards_intact());

    // Against the layout that the host knows.
    const TensorView used = packed.span().rows(0, known->total());
    for (const bool last : {false, true}) {
      const Target a(context, {batch, 5}, Dtype::f32), b(context, {batch, 5}, Dtype::f32);
      pick_elements(context, packed.span(), *layout, last, 1.0, a);
      pick_elements(context, used, *known, last, 1.0, b);
      CHECK(a.bytes() == b.bytes());
    }
    Random random(seed);
    Tensor clean = Tensor::zeros({total, 5}, Dtype::f32);
    for (float& value : clean.values<float>()) value = static_cast<float>(random.number());
    const Tensor clean_device = context.to_device(clean);
    const TensorView clean_used = clean_device.view().rows(0, known->total());
    const Target a(context, {batch, 5}, Dtype::f32), b(context, {batch, 5}, Dtype::f32);
    reduce_sequences(context, Reduction::mean, clean_device, *layout, -1.0, a);
    reduce_sequences(context, Reduction::mean, clean_used, *known, -1.0, b);
    CHECK(a.bytes() == b.bytes());

    const Target c(context, {total, 5}, Dtype::f32), d(context, {known->total(), 5}, Dtype::f32);
    context.copy(clean_device, c.span());
    context.copy(clean_used, d.span());
    dropout(context, *layout, {.seed = 3}, 0.5, c.span());
    dropout(context, *known, {.seed = 3}, 0.5, d.span());
    CHECK(bytes_on(context, c.span().rows(0, known->total())) == d.bytes());
    CHECK(bytes_on(context, c.span().rows(known->total(), total)) ==
          bytes_of(clean.view().rows(known->total(), total)));

    // On the way back spare rows are zero.
    const auto check_back = [&](auto&& run) {
      const Target mine(context, {total, 5}, Dtype::f32),
          its(context, {known->total(), 5}, Dtype::f32);
      run(*layout, clean_device.view(), mine.span());
      run(*known, clean_used, its.span());
      Bytes wanted = its.bytes();
      wanted.resize(mine.bytes().size());
      CHECK(mine.bytes() == wanted);
      CHECK(mine.guards_intact());
    };
    for (const bool last : {false, true})
      check_back([&](const PackedLayout& l, const TensorView&, const TensorSpan& to) {
        put_elements(context, a.span(), l, last, to);
      });
    for (const Reduction reduction : {Reduction::sum, Reduction::mean, Reduction::max})
      check_back([&](const PackedLayout& l, const TensorView& from, const TensorSpan& to) {
        reduce_sequences_backward(context, reduction, from, l, a.span(), to);
      });
  }
}

TEST_CASE("bad lengths on the device are clamped and reported at the next wait") {
  Context context;
  const auto make = [&](const Ints& lengths, const LayoutCapacity& capacity) {
    return make_layout(context, lengths_on(context, lengths, Dtype::i64), capacity);
  };
  struct Case {
    Ints lengths;
    LayoutCapacity capacity;
    std::initializer_list<const char*> parts;
    Ints clamped;
  };
  const std::int64_t wide = (std::int64_t{1} << 32) + 1;
  const Case cases[] = {
      {{2, -1, 3}, {.padded_length = 4}, {"lengths[1]", "-1"}, {2, 0, 3}},
      {{2, 1, 5}, {.padded_length = 4}, {"5", "4"}, {2, 1, 4}},
      {{wide, 1, 2}, {.padded_length = 4}, {"4294967297"}, {4, 1, 2}},
      {{2, 3, 1}, {.padded_length = 4, .enforce_sorted = true}, {"2", "3", "order"}, {2, 3, 1}},
      {{4, 4, 1}, {.padded_length = 4, .rows = 8}, {"9", "8", "rows"}, {0, 0, 0}}};
  for (const Case& one : cases) {
    CAPTURE(one.lengths);
    if (!on_gpu(context)) {
      check_throws([&] { make(one.lengths, one.capacity); }, one.parts);
      continue;
    }
    const auto layout = make(one.lengths, one.capacity);
    check_throws([&] { context.synchronize(); }, one.parts);
    context.synchronize();  // once
    check_tables(read(context, layout->on(context)), *PackedLayout::make(one.clamped), count_up(3));
  }
}

TEST_CASE("a layout that the host does not know says so where lengths are needed") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("no device");
  const Tensor lengths = lengths_on(context, {2, 1}, Dtype::i64);
  const auto layout = make_layout(context, lengths, {.padded_length = 3});
  CHECK(!layout->sorted());
  check_throws<Unsupported>([&] { layout->lengths(); }, {"lengths", "device"});
  check_throws<Unsupported>([&] { layout->batch_sizes(); }, {"batch sizes"});
  check_throws<Unsupported>([&] { layout->offsets(); }, {"offsets"});
  check_throws<Unsupported>([&] { layout->sorted_indices(); }, {"order"});
  check_throws<Unsupported>([&] { layout->unsorted_indices(); }, {"order"});
  check_throws<Unsupported>([&] { layout->sequence_ids(); }, {"ids"});
  const Tensor one = context.zeros({2, 4}, Dtype::f32), two = context.zeros({1, 4}, Dtype::f32);
  const std::vector<TensorView> sequences = {one, two};
  const Target packed(context, {6, 4}, Dtype::f32);
  check_throws<Unsupported>([&] { pack_sequences(context, sequences, *layout, packed); },
                            {"lengths"});
  Context other;
  check_throws([&] { layout->on(other); }, {"another context"});
  check_throws([&] { Lengths{lengths}; }, {"on cuda:0", "make_layout"});
}

TEST_CASE("arguments of make_layout are checked at once") {
  Context context;
  const Tensor good = lengths_on(context, {2, 1}, Dtype::i32);
  const auto make = [&](const TensorView& lengths, const LayoutCapacity& capacity) {
    return [&context, lengths, capacity] { make_layout(context, lengths, capacity); };
  };
  check_throws(make(TensorView{}, {.padded_length = 3}), {"lengths", "[N]"});
  check_throws(make(good, {}), {"padded_length is -1"});
  check_throws(make(good, {.padded_length = std::int64_t{1} << 40}), {"padded_length"});
  check_throws(make(good, {.padded_length = 3, .rows = -2}), {"rows is -2"});
  const Tensor floats = context.zeros({2}, Dtype::f32), ids = context.zeros({3}, Dtype::i64),
               matrix = context.zeros({2, 2}, Dtype::i32);
  check_throws(make(floats, {.padded_length = 3}), {"f32", "i32 or i64"});
  check_throws(make(matrix, {.padded_length = 3}), {"[2, 2]", "[N]"});
  check_throws(make(good, {.padded_length = 3, .sequence_ids = ids}), {"sequence_ids", "[3]"});
  const Device elsewhere = on_gpu(context) ? Device::cpu() : Device::cuda(0);
  check_throws(
      make(TensorView(good.view().raw(), {2}, Dtype::i32, elsewhere), {.padded_length = 3}),
      {"lengths", elsewhere.name().c_str()});
}

TEST_CASE("one captured graph packs whatever lengths it is launched with") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("no device");
  const std::int64_t N = 9, T = 7, rows = 50;
  Tensor lengths = context.zeros({N}, Dtype::i64);
  Tensor padded = context.zeros({N, T, 3}, Dtype::f32);
  Tensor packed = context.zeros({rows, 3}, Dtype::f32);
  Tensor back = context.zeros({N, T, 3}, Dtype::f32);
  Graph graph = capture(context, [&] {
    const auto layout = make_layout(context, lengths, {.padded_length = T, .rows = rows});
    pack_padded(context, padded, *layout, true, packed);
    unpack_padded(context, packed, *layout, true, -1.0, back);
  });
  Random random(5);
  for (int launch = 0; launch < 6; ++launch) {
    Ints now;
    for (std::int64_t n = 0; n < N; ++n) now.push_back(random.below(launch == 3 ? 1 : 6));
    const Tensor data = scrambled({N, T, 3}, Dtype::f32, static_cast<std::uint64_t>(launch));
    context.copy(TensorView(now.data(), {N}), lengths);
    context.copy(data, padded);
    const std::int64_t waits = gpu::waits();
    graph.launch(context);
    CHECK(gpu::waits() == waits);
    Bytes expected = naive_pack(bytes_of(data), now, T, true, 12);
    CHECK(bytes_on(context, back) ==
          naive_unpack(expected, now, T, true, 12, element_bytes(-1.0, Dtype::f32)));
    expected.resize(static_cast<std::size_t>(rows) * 12);
    CHECK(bytes_on(context, packed) == expected);
  }
}

TEST_CASE("a captured graph may use layouts and lists of the host") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("no device");
  const Ints lengths = {2, 4, 0, 3};
  const Tensor data = scrambled({4, 4, 3}, Dtype::f32, 3);
  Tensor padded = context.zeros({4, 4, 3}, Dtype::f32), packed = context.zeros({9, 3}, Dtype::f32);
  const bool before = GENERATE(false, true);
  PackedLayoutPtr layout = PackedLayout::make(lengths);
  if (before) layout->on(context);
  Graph graph = capture(context, [&] {
    pack_padded(context, padded, *layout, true, packed);
    pack_padded(context, padded, *layout, true, packed);
  });
  // The layout's own tables are uploaded and good, whatever the capture did.
  check_tables(read(context, layout->on(context)), *layout, count_up(4));
  context.copy(data, padded);
  graph.launch(context);
  CHECK(bytes_on(context, packed) == naive_pack(bytes_of(data), lengths, 4, true, 12));
}

TEST_CASE("packing and what follows make the host wait for nothing") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("no device");
  const Ints lengths = {3, 5, 0, 1};
  const Tensor padded = context.zeros({5, 4, 6}, Dtype::f32);
  const Tensor device_lengths = lengths_on(context, lengths, Dtype::i64);
  Tensor packed = context.zeros({9, 6}, Dtype::f32), back = context.zeros({5, 4, 6}, Dtype::f32),
         reduced = context.zeros({4, 6}, Dtype::f32), twice = context.zeros({9, 12}, Dtype::f32);
  std::vector<Tensor> sequences;
  for (const std::int64_t length : lengths)
    sequences.push_back(context.zeros({length, 6}, Dtype::f32));
  const std::vector<TensorView> views(sequences.begin(), sequences.end());
  const std::vector<TensorSpan> spans(sequences.begin(), sequences.end());
  const Ints rows = {8, -1, 0, 3};
  const Tensor indices = context.to_device(TensorView(rows.data(), {4}));
  const std::int64_t waits = gpu::waits();
  for (int turn = 0; turn < 3; ++turn) {
    const auto layout = turn == 0
                            ? PackedLayout::make(lengths)
                            : make_layout(context, device_lengths, {.padded_length = 5, .rows = 9});
    pack_padded(context, padded, *layout, false, packed);
    unpack_padded(context, packed, *layout, false, 0.0, back);
    reduce_sequences(context, Reduction::max, packed, *layout, 0.0, reduced);
    pick_elements(context, packed, *layout, true, 0.0, reduced);
    dropout(context, *layout, {}, 0.5, packed);
    if (turn > 0) continue;
    pack_sequences(context, views, *layout, packed);
    unpack_sequences(context, packed, *layout, spans);
    pad_sequences(context, views, false, 0.0, back);
    gather_rows(context, packed, indices, reduced, 0.0);
    const std::vector<TensorView> halves = {packed, packed};
    concat_features(context, halves, twice);
  }
  CHECK(gpu::waits() == waits);
  context.synchronize();
}

}  // namespace
}  // namespace packrnn::kernels
