#include "packrnn/kernels/dropout.hpp"

#include <cmath>
#include <limits>

#include "packrnn/runtime/philox.hpp"
#include "tests/catch.hpp"
#include "tests/kernels/device_tensors.hpp"
#include "tests/packing_cases.hpp"

namespace packrnn::kernels {
namespace {

using namespace packrnn::tests;

std::uint32_t low(std::uint64_t v) { return static_cast<std::uint32_t>(v); }
std::uint32_t high(std::uint64_t v) { return static_cast<std::uint32_t>(v >> 32); }

// Whether element u of a step is kept, from the definition (contract C3).
bool kept(const DropoutKey& key, std::int64_t id, std::int64_t step, std::int64_t u, double p) {
  const auto stream =
      philox4x32_10({low(key.draw), high(key.draw), key.layer, 0}, {low(key.seed), high(key.seed)});
  const auto i = static_cast<std::uint64_t>(id);
  const auto bits = philox4x32_10({low(static_cast<std::uint64_t>(u / 4)),
                                   low(static_cast<std::uint64_t>(step)), low(i), high(i)},
                                  {stream[0], stream[1]});
  return static_cast<float>(bits[static_cast<std::size_t>(u % 4)] >> 8) * 0x1p-24F >=
         static_cast<float>(p);
}

template <class T>
void check_dropout(Context& context, const Ints& lengths, std::int64_t width, double p,
                   std::size_t shift) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Ints ids;
  for (std::size_t n = 0; n < lengths.size(); ++n)
    ids.push_back(static_cast<std::int64_t>(n * 0x123456789ABU) - 5);
  const auto layout = PackedLayout::make(lengths, {.sequence_ids = ids});
  const DropoutKey key{
      .seed = 0xFEDCBA9876543210U, .draw = (std::uint64_t{1} << 40) + 3, .layer = 2};
  const Shape shape{layout->total(), width};
  Tensor values = Tensor::empty(shape, kDtypeOf<T>);
  Random random(static_cast<std::uint64_t>(width));
  for (T& value : values.values<T>()) value = static_cast<T>(static_cast<A>(3.0 * random.number()));
  // What is dropped is zero whatever it was.
  if (values.elements() > 0)
    values.values<T>()[0] = static_cast<T>(std::numeric_limits<A>::infinity());

  std::vector<T> expected;
  const A scale = p < 1.0 ? static_cast<A>(1.0 / (1.0 - p)) : A{0};
  std::size_t at = 0;
  for (const Cell cell : naive_rows(lengths))
    for (std::int64_t u = 0; u < width; ++u, ++at)
      expected.push_back(
          kept(key, ids[static_cast<std::size_t>(cell.sequence)], cell.step, u, p)
              ? static_cast<T>(static_cast<A>(static_cast<A>(values.values<T>()[at]) * scale))
              : static_cast<T>(A{0}));

  const Target rows(context, shape, kDtypeOf<T>, std::byte{0xFF}, shift);
  context.copy(context.to_device(values), rows.span());
  dropout(context, *layout, key, p, rows.span());
  CHECK(difference(rows.bytes(), bytes_of(TensorView(expected.data(), shape, kDtypeOf<T>))) == "");
  CHECK(rows.guards_intact());
}

TEMPLATE_TEST_CASE("dropout masks are those of the definition", "", float, double, Half, BFloat16) {
  Context context;
  if (!on_gpu(context) && sizeof(TestType) == 2) PACKRNN_SKIP("16-bit dropout is for a GPU");
  for (const Ints& lengths : {Ints{3, 0, 7, 1, 3}, Ints{}, Ints{0, 0}, Ints{40, 11}})
    for (const std::int64_t width : {1, 2, 4, 7, 12, 64})
      for (const double p : {0.25, 0.9, 1.0})
        for (const std::size_t shift : {std::size_t{0}, sizeof(TestType)}) {
          CAPTURE(lengths, width, p, shift);
          check_dropout<TestType>(context, lengths, width, p, shift);
        }
}

TEST_CASE("dropout with probability 0 changes nothing and bad arguments are refused") {
  Context context;
  const auto layout = PackedLayout::make({2, 1});
  const Tensor values = scrambled({3, 5}, Dtype::f32, 8);
  const Target rows(context, {3, 5}, Dtype::f32);
  context.copy(context.to_device(values), rows.span());
  dropout(context, *layout, {}, 0.0, rows.span());
  CHECK(rows.bytes() == bytes_of(values));

  const auto run = [&](double p, const TensorSpan& span) {
    return [&context, &layout, p, span] { dropout(context, *layout, {}, p, span); };
  };
  check_throws(run(-0.1, rows.span()), {"-0.1", "probability"});
  check_throws(run(std::nan(""), rows.span()), {"nan", "probability"});
  Tensor wrong = context.zeros({4, 5}, Dtype::f32), integers = context.zeros({3, 5}, Dtype::i32);
  check_throws(run(0.5, wrong), {"rows", "[4, 5]", "[3, 5]"});
  check_throws<Unsupported>(run(0.5, integers), {"dropout", "i32"});
}

}  // namespace
}  // namespace packrnn::kernels
