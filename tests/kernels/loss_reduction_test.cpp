// Against plain loops in double, over rows and over sequences, also of a layout that the host does
// not know.
#include "packrnn/kernels/loss_reduction.hpp"

#include "packrnn/kernels/layout.hpp"
#include "tests/kernels/numbers.hpp"
#include "tests/shapes.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

constexpr Average kAverages[] = {Average::none, Average::rows, Average::sequence,
                                 Average::sequences};
constexpr Collect kCollects[] = {Collect::rows, Collect::sequences, Collect::all};

// Which sequence each packed row is of, -1 for rows that are left over.
Ints sequences_of(const Ints& lengths, std::int64_t rows) {
  Ints result;
  for (const Cell& cell : naive_rows(lengths)) result.push_back(cell.sequence);
  result.resize(static_cast<std::size_t>(rows), -1);
  return result;
}

Doubles plain_scales(Average average, const Doubles& weights, const Ints& sequences,
                     std::size_t batch) {
  Doubles totals(batch);
  double all = 0, counted = 0;
  for (std::size_t row = 0; row < weights.size(); ++row) {
    if (sequences[row] < 0) continue;
    all += weights[row];
    totals[static_cast<std::size_t>(sequences[row])] += weights[row];
  }
  for (const double total : totals) counted += total > 0 ? 1 : 0;
  Doubles scales;
  for (const std::int64_t n : sequences) {
    const double own = n < 0 ? 0 : totals[static_cast<std::size_t>(n)];
    const double divisor = average == Average::none       ? 1
                           : average == Average::rows     ? all
                           : average == Average::sequence ? own
                                                          : own * counted;
    scales.push_back(n < 0 || divisor == 0 ? 0 : 1 / divisor);
  }
  return scales;
}

std::size_t element_of(Collect collect, std::size_t row, std::int64_t sequence) {
  return collect == Collect::rows  ? row
         : collect == Collect::all ? 0
                                   : static_cast<std::size_t>(sequence);
}

// All that the kernels make of rows of such sequences; `layout` is null for rows alone.
void check_reductions(Context& context, const Ints& lengths, std::int64_t rows,
                      const PackedLayout* layout, std::uint64_t seed) {
  const Ints sequences =
      layout != nullptr ? sequences_of(lengths, rows) : Ints(static_cast<std::size_t>(rows), 0);
  Random random(seed);
  Doubles weights, losses;
  for (std::int64_t row = 0; row < rows; ++row) {
    weights.push_back(static_cast<double>(random.below(4)));
    losses.push_back(random.number());
  }
  if (rows > 2) weights[2] = 0;
  const Shape shape{rows};
  const Tensor weights_there = context.to_device(Tensor::from(weights, shape)),
               losses_there = context.to_device(Tensor::from(losses, shape));
  const auto terms = static_cast<double>(rows);
  for (const Average average : kAverages) {
    if (layout == nullptr && average != Average::none && average != Average::rows) continue;
    CAPTURE(lengths, rows, static_cast<int>(average), layout != nullptr);
    const Target scales(context, shape, Dtype::f64);
    loss_scales(context, average, weights_there, layout, scales);
    const Doubles expected =
        plain_scales(average, weights, sequences, std::max<std::size_t>(1, lengths.size()));
    REQUIRE(far_off(doubles_on(context, scales.span()), expected,
                    [](double value) { return 8 * kU64 * value; }) == "");
    CHECK(scales.guards_intact());

    for (const Collect collect : kCollects)
      for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
        if (layout == nullptr && collect == Collect::sequences) continue;
        CAPTURE(static_cast<int>(collect), dtype);
        const std::int64_t elements = collect == Collect::rows  ? rows
                                      : collect == Collect::all ? 1
                                                                : layout->batch();
        // What a scale of 0 leaves out may be anything.
        Doubles with_nan = losses, sums(static_cast<std::size_t>(elements)), gradients;
        const Tensor upstream = random_tensor({elements}, dtype, seed + 9);
        for (std::size_t row = 0; row < losses.size(); ++row) {
          if (expected[row] == 0) {
            with_nan[row] = kNaN;
            gradients.push_back(0);
            continue;
          }
          const std::size_t e = element_of(collect, row, sequences[row]);
          sums[e] += expected[row] * losses[row];
          gradients.push_back(expected[row] * doubles_of(upstream)[e]);
        }
        const Target result(context, {elements}, dtype);
        const auto collect_into = [&](const TensorSpan& to) {
          collect_losses(context, collect, layout, context.to_device(Tensor::from(with_nan, shape)),
                         scales.span(), to);
        };
        collect_into(result);
        CHECK(far_off(doubles_on(context, result.span()), sums, within(dtype, terms, 2)) == "");
        CHECK(result.guards_intact());
        const Target again(context, {elements}, dtype);
        collect_into(again);
        CHECK(again.bytes() == result.bytes());

        const Target row_gradients(context, shape, Dtype::f64);
        collect_losses_backward(context, collect, layout, context.to_device(upstream),
                                scales.span(), row_gradients);
        CHECK(far_off(doubles_on(context, row_gradients.span()), gradients,
                      [](double value) { return 16 * kU64 * std::abs(value); }) == "");
        CHECK(row_gradients.guards_intact());
      }
  }
}

TEST_CASE("losses of rows are averaged and summed") {
  Context context;
  std::uint64_t seed = 0;
  for (const std::int64_t rows : {0, 1, 3, 255, 4096, 4097, full_or_small(20000, 9000)})
    check_reductions(context, {}, rows, nullptr, ++seed);
}

TEST_CASE("losses of sequences are averaged and summed") {
  Context context;
  std::uint64_t seed = 0;
  for (const Ints& lengths : random_length_vectors(full_or_small(40, 8))) {
    const auto layout = PackedLayout::make(lengths);
    check_reductions(context, lengths, layout->total(), layout.get(), ++seed);
  }
  Ints many;
  Random random(5);
  for (int n = 0; n < 300; ++n) many.push_back(random.below(20));
  const auto layout = PackedLayout::make(many);
  check_reductions(context, many, layout->total(), layout.get(), 1);
}

TEST_CASE("rows that a layout made on the device has left over weigh nothing and get nothing") {
  Context context;
  if (!on_gpu(context)) PACKRNN_SKIP("a layout made on the CPU is known");
  for (const Ints& lengths : {Ints{3, 0, 5, 1}, Ints{0, 0}, Ints{2}}) {
    const auto layout = make_layout(
        context,
        context.to_device(Tensor::from(lengths, {static_cast<std::int64_t>(lengths.size())})),
        {.padded_length = 6});
    CHECK_FALSE(layout->known());
    check_reductions(context, lengths, layout->total(), layout.get(), 3);
  }
}

TEST_CASE("the mean of no weight is 0") {
  Context context;
  const auto layout = PackedLayout::make({1, 2});
  const Tensor none = context.zeros({3}, Dtype::f64);
  for (const Average average : {Average::rows, Average::sequence, Average::sequences}) {
    const Target scales(context, {3}, Dtype::f64);
    loss_scales(context, average, none, layout.get(), scales);
    CHECK(doubles_on(context, scales.span()) == Doubles{0, 0, 0});
  }
}

TEST_CASE("infinite losses are left out, others stay") {
  Context context;
  const Tensor losses = context.to_device(Tensor::from({1.0, kInfinity, 0.0, kNaN}, {4}));
  const Target scales(context, {4}, Dtype::f64);
  context.copy(context.to_device(Tensor::from({2.0, 3.0, 4.0, 5.0}, {4})), scales.span());
  leave_out_infinite(context, losses, scales);
  CHECK(doubles_on(context, scales.span()) == Doubles{2, 0, 4, 5});
  CHECK(scales.guards_intact());
}

TEST_CASE("reductions of losses refuse what does not fit") {
  Context context;
  const auto layout = PackedLayout::make({1, 2}), longer = PackedLayout::make({2, 2});
  const Tensor rows = context.zeros({3}, Dtype::f64), floats = context.zeros({3}, Dtype::f32);
  Tensor scales = context.zeros({3}, Dtype::f64), four = context.zeros({4}, Dtype::f64),
         one = context.zeros({}, Dtype::f32), half = context.zeros({}, Dtype::f16);
  const auto collect = [&](Collect how, const PackedLayout* where, const TensorSpan& result) {
    return [&context, &rows, &scales, how, where, result] {
      collect_losses(context, how, where, rows, scales, result);
    };
  };
  check_throws([&] { loss_scales(context, Average::rows, floats, nullptr, scales); },
               {"weights", "f32"});
  check_throws([&] { loss_scales(context, Average::rows, rows, nullptr, four); },
               {"scales", "[4]", "[3]"});
  check_throws([&] { loss_scales(context, Average::sequence, rows, nullptr, scales); },
               {"no layout"});
  check_throws([&] { loss_scales(context, Average::rows, rows, longer.get(), scales); },
               {"4 rows", "expected 3"});
  check_throws([&] { leave_out_infinite(context, rows, four); }, {"scales", "[4]", "[3]"});
  check_throws(collect(Collect::all, nullptr, half), {"result", "f16"});
  check_throws(collect(Collect::rows, nullptr, one), {"result", "1 elements", "3"});
  check_throws(collect(Collect::sequences, layout.get(), one), {"result", "1 elements", "2"});
  check_throws(collect(Collect::sequences, nullptr, one), {"no layout"});
  check_throws([&] { collect_losses_backward(context, Collect::all, nullptr, rows, rows, scales); },
               {"gradient", "3 elements", "1"});
}

}  // namespace
}  // namespace packrnn::kernels
