#include <sys/resource.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/tensor.hpp>
#include <vector>

#include "tests/catch.hpp"
#include "tests/sanitized.hpp"

namespace packrnn {
namespace {

using Catch::Contains;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

bool aligned(const void* data, std::size_t boundary) {
  return reinterpret_cast<std::uintptr_t>(data) % boundary == 0;
}

}  // namespace

TEST_CASE("buffers are aligned, and huge ones to huge pages") {
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 1000U, 1U << 20}) {
    const Buffer buffer = Buffer::allocate(Device::cpu(), bytes);
    CHECK(buffer.data() != nullptr);
    CHECK(aligned(buffer.data(), kAlignment));
    CHECK(buffer.size() == bytes);
  }
  const Buffer buffer = Buffer::allocate(Device::cpu(), (2U << 20) + 1);
  CHECK(aligned(buffer.data(), 2U << 20));
  std::memset(buffer.data(), 1, buffer.size());
}

TEST_CASE("a size that cannot be had is OutOfMemory and is named") {
  CHECK_THROWS_AS(Buffer::allocate(Device::cpu(), std::size_t{1} << 60), OutOfMemory);
  CHECK_THROWS_WITH(Buffer::allocate(Device::cpu(), (std::size_t{1} << 62) + 3),
                    Contains("4611686018427387907 bytes"));
  CHECK_THROWS_AS(Buffer::allocate(Device::cpu(), std::numeric_limits<std::size_t>::max()),
                  OutOfMemory);
}

#if !defined(PACKRNN_ASAN) && !defined(PACKRNN_TSAN)
TEST_CASE("a size that the system refuses is OutOfMemory and leaves everything usable") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit low = before;
  low.rlim_cur = std::size_t{4} << 30;
  REQUIRE(setrlimit(RLIMIT_AS, &low) == 0);
  CHECK_THROWS_AS(Buffer::allocate(Device::cpu(), std::size_t{8} << 30), OutOfMemory);
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(Buffer::allocate(Device::cpu(), 100).data() != nullptr);
}
#endif

TEST_CASE("this version allocates nothing on a GPU and says so") {
  CHECK_THROWS_AS(Buffer::allocate(Device::cuda(99), 64), Unsupported);
  CHECK_THROWS_WITH(Buffer::allocate(Device::cuda(99), 64),
                    Contains("cuda:99") && Contains("CUDA: "));
  CHECK_THROWS_AS(Tensor::empty({2}, Dtype::f32, Device::cuda(99)), Unsupported);
}

TEST_CASE("adopted memory is released once, null data included") {
  int released = 0;
  float value = 0;
  {
    Buffer a = Buffer::adopt(Device::cpu(), &value, sizeof value, [&] { ++released; });
    Buffer b = std::move(a);
    CHECK(a.data() == nullptr);  // NOLINT(bugprone-use-after-move): this state is promised
    CHECK(a.size() == 0);        // NOLINT(bugprone-use-after-move)
    CHECK(b.data() == &value);
    CHECK(released == 0);
  }
  CHECK(released == 1);
  {
    const Buffer none = Buffer::adopt(Device::cpu(), nullptr, 0, [&] { ++released; });
  }
  CHECK(released == 2);
  CHECK_THROWS_WITH(Buffer::adopt(Device::cpu(), nullptr, 8, [&] { ++released; }),
                    Contains("null") && Contains("8"));
  CHECK(released == 3);
}

TEST_CASE("devices have names and a status of one line") {
  CHECK(Device::cpu().name() == "cpu");
  CHECK(Device::cuda(3).name() == "cuda:3");
  CHECK(Device::cuda_count() >= 0);
  const std::string status = Device::cuda_status();
  CAPTURE(status);
  CHECK_THAT(status, Catch::StartsWith("CUDA: ") && Contains("; using "));
  CHECK(status.find('\n') == std::string::npos);
}

TEST_CASE("shapes") {
  const Shape shape{3, 4, 5};
  CHECK(shape.rank() == 3);
  CHECK(shape.elements() == 60);
  CHECK(shape[0] == 3);
  CHECK(shape[-1] == 5);
  CHECK(shape.str() == "[3, 4, 5]");
  CHECK(shape.from(1) == Shape{4, 5});
  CHECK(shape.from(3) == Shape{});
  CHECK(shape.from(1).prepend(7) == Shape{7, 4, 5});
  CHECK(Shape{}.elements() == 1);
  CHECK(Shape{}.str() == "[]");
  CHECK(Shape{3, 0, 5}.elements() == 0);
  CHECK(Shape{3, 4} != Shape{4, 3});
  CHECK(Shape{kMax}.elements() == kMax);

  CHECK_THROWS_WITH(shape[3], Contains("3") && Contains("[3, 4, 5]"));
  CHECK_THROWS_WITH(shape[-4], Contains("-4"));
  CHECK_THROWS_WITH(shape.from(4), Contains("4"));
  CHECK_THROWS_WITH((Shape{2, -1}), Contains("-1") && Contains("[2, -1]"));
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}), Contains("9") && Contains("8"));
  CHECK_THROWS_WITH((Shape{1, 2, 3, 4, 5, 6, 7, 8}.prepend(1)), Contains("[1, 2, 3"));
  CHECK_THROWS_AS((Shape{kMax, 2}), InvalidArgument);
  CHECK_THROWS_AS((Shape{std::int64_t{1} << 32, std::int64_t{1} << 31}), InvalidArgument);
  CHECK_THROWS_AS((Shape{kMax, 0, 2}), InvalidArgument);  // a part of it would overflow
}

TEST_CASE("views check type, device, alignment and bounds") {
  std::vector<float> data{0, 1, 2, 3, 4, 5};
  const TensorSpan span(data.data(), Shape{3, 2});
  const TensorView view = span;
  CHECK(view.defined());
  CHECK(view.dtype() == Dtype::f32);
  CHECK(view.bytes() == 24);
  CHECK(view.rows(1, 3).shape() == Shape{2, 2});
  CHECK(view.rows(1, 3).values<float>()[0] == 2);
  CHECK(view.rows(3, 3).elements() == 0);
  CHECK(view.reshape({6}).values<float>()[5] == 5);
  span.rows(2, 3).values<float>()[1] = 9;
  span.reshape({2, 3}).data<float>()[0] = 8;
  CHECK(data == std::vector<float>{8, 1, 2, 3, 4, 9});

  CHECK_THROWS_WITH(view.rows(2, 4), Contains("[2, 4)") && Contains("3 rows"));
  CHECK_THROWS_AS(view.rows(2, 1), InvalidArgument);
  CHECK_THROWS_AS(view.rows(-1, 1), InvalidArgument);
  CHECK_THROWS_AS(view.reshape({}).rows(0, 0), InvalidArgument);
  CHECK_THROWS_WITH(view.reshape({4}), Contains("[3, 2]") && Contains("[4]"));
  CHECK_THROWS_WITH(view.values<double>(), Contains("f32") && Contains("f64"));
  CHECK_THROWS_WITH(TensorView(data.data(), {6}, Dtype::f32, Device::cuda(2)).data<float>(),
                    Contains("cuda:2"));
  CHECK_THROWS_WITH(TensorView(nullptr, {2}, Dtype::f32), Contains("null") && Contains("[2]"));
  CHECK_THROWS_AS(TensorView(data.data(), {kMax}, Dtype::f32), InvalidArgument);
  const auto* odd = reinterpret_cast<const std::byte*>(data.data()) + 1;
  CHECK_THROWS_WITH(TensorView(odd, {2}, Dtype::f32).values<float>(), Contains("not aligned"));

  const TensorView none;
  CHECK_FALSE(none.defined());
  CHECK(none.elements() == 0);
  CHECK(none.bytes() == 0);
  CHECK_THROWS_AS(none.values<float>(), InvalidArgument);
  CHECK_THROWS_AS(none.rows(0, 0), InvalidArgument);
  CHECK_THROWS_AS(none.reshape({}), InvalidArgument);
  CHECK_THROWS_AS(Tensor::copy_of(none), InvalidArgument);
}

TEST_CASE("rows of an empty tensor need no data") {
  const TensorView view(nullptr, {4, 0}, Dtype::f32);
  CHECK(view.rows(1, 3).shape() == Shape{2, 0});
  CHECK(view.rows(1, 3).values<float>().empty());
}

TEST_CASE("tensors own, move and copy") {
  Tensor a = Tensor::from({1.0F, 2.0F, 3.0F, 4.0F}, {2, 2});
  CHECK(aligned(a.view().raw(), kAlignment));
  Tensor b = a.clone();
  b.values<float>()[0] = 7;
  CHECK(a.values<float>()[0] == 1);
  const void* data = a.view().raw();
  Tensor c = std::move(a);
  CHECK_FALSE(a.defined());  // NOLINT(bugprone-use-after-move): this state is promised
  CHECK(a.elements() == 0);  // NOLINT(bugprone-use-after-move)
  CHECK(c.view().raw() == data);
  const Tensor d = std::move(c).reshape({4});
  CHECK_FALSE(c.defined());  // NOLINT(bugprone-use-after-move)
  CHECK(d.view().raw() == data);
  CHECK(d.shape() == Shape{4});
  b = Tensor();
  CHECK_FALSE(b.defined());

  const Tensor zeros = Tensor::zeros({3, 5}, Dtype::f16);
  for (const Half& value : zeros.values<Half>()) CHECK(value.bits == 0);
  CHECK(Tensor::from(std::vector<std::int64_t>{5}, {}).elements() == 1);
  CHECK(Tensor::zeros({0, 3}, Dtype::f32).clone().shape() == Shape{0, 3});

  CHECK_THROWS_WITH(Tensor::from({1.0F, 2.0F}, {3}), Contains("2 values") && Contains("[3]"));
  CHECK_THROWS_AS(Tensor::empty({kMax}, Dtype::f64), OutOfMemory);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 50}, Dtype::f64), OutOfMemory);
}

TEST_CASE("a refused reshape leaves the tensor as it was") {
  Tensor tensor = Tensor::zeros({4}, Dtype::f32);
  CHECK_THROWS_AS(std::move(tensor).reshape({5}), InvalidArgument);
  CHECK(tensor.defined());  // NOLINT(bugprone-use-after-move): nothing was moved
  CHECK(tensor.shape() == Shape{4});
}

TEST_CASE("tensors share storage and keep it alive, within its bounds") {
  auto storage = std::make_shared<Buffer>(Buffer::allocate(Device::cpu(), 64));
  auto* floats = static_cast<float*>(storage->data());
  const std::weak_ptr<Buffer> alive = storage;
  {
    const Tensor tensor = Tensor::share(storage, floats + 4, {12}, Dtype::f32);
    CHECK_THROWS_WITH(Tensor::share(storage, floats + 4, {13}, Dtype::f32),
                      Contains("52 bytes") && Contains("offset 16") && Contains("64"));
    CHECK_THROWS_AS(Tensor::share(storage, floats - 1, {1}, Dtype::f32), InvalidArgument);
    CHECK_THROWS_AS(Tensor::share(storage, floats + 17, {1}, Dtype::f32), InvalidArgument);
    CHECK_THROWS_AS(Tensor::share(nullptr, floats, {1}, Dtype::f32), InvalidArgument);
    storage.reset();
    CHECK_FALSE(alive.expired());
  }
  CHECK(alive.expired());
}

TEST_CASE("conversion between floating dtypes rounds once, to nearest even") {
  const Tensor source = Tensor::from({1.0, 1.0 + 0x1p-11, -2.5, 1e300, 0x1p-25, std::nan("")}, {6});
  const Tensor f32 = convert(source, Dtype::f32);
  CHECK(f32.values<float>()[2] == -2.5F);
  CHECK(std::isinf(f32.values<float>()[3]));
  CHECK(std::isnan(f32.values<float>()[5]));
  const Tensor f16 = convert(source, Dtype::f16);
  CHECK(f16.values<Half>()[1].bits == 0x3C00);  // a tie
  CHECK(f16.values<Half>()[3].bits == 0x7C00);
  CHECK(f16.values<Half>()[4].bits == 0);

  // Just above a tie, by less than a float can see: rounding through float would lose it.
  const Tensor near_tie =
      Tensor::from({1.0 + 0x1p-11 + 0x1p-40, 1.0 + 3 * 0x1p-11 - 0x1p-40, 0x1p-25 + 0x1p-70}, {3});
  const Tensor half = convert(near_tie, Dtype::f16);
  CHECK(half.values<Half>()[0].bits == 0x3C01);
  CHECK(half.values<Half>()[1].bits == 0x3C01);
  CHECK(half.values<Half>()[2].bits == 1);
  const Tensor bfloat16 =
      convert(Tensor::from({1.0 + 0x1p-8 + 0x1p-40, -1.0 - 0x1p-8 - 0x1p-40}, {2}), Dtype::bf16);
  CHECK(bfloat16.values<BFloat16>()[0].bits == 0x3F81);
  CHECK(bfloat16.values<BFloat16>()[1].bits == 0xBF81);

  const Tensor back = convert(f16, Dtype::f64);
  CHECK(back.values<double>()[2] == -2.5);
  CHECK(convert(bfloat16, Dtype::f16).values<Half>()[0].bits == 0x3C08);
}

TEST_CASE("conversion of integers") {
  const Tensor source = Tensor::from<std::int64_t>({-3, 0, 70000}, {3});
  CHECK(convert(source, Dtype::i32).values<std::int32_t>()[2] == 70000);
  CHECK(convert(source, Dtype::f32).values<float>()[0] == -3);
  CHECK(convert(source, Dtype::f16).values<Half>()[2].bits == 0x7C00);
  CHECK(convert(convert(source, Dtype::i32), Dtype::i64).values<std::int64_t>()[2] == 70000);
  CHECK_THROWS_WITH(convert(Tensor::from<std::int64_t>({1, 1LL << 31}, {2}), Dtype::i32),
                    Contains("source[1]") && Contains("2147483648"));
  CHECK_THROWS_WITH(convert(Tensor::from({1.0F}, {1}), Dtype::i64),
                    Contains("f32") && Contains("i64"));
}

TEST_CASE("conversion into existing memory checks shape and overlap, and takes any alignment") {
  const Tensor source = Tensor::from({1.0F, 2.0F}, {2});
  Tensor target = Tensor::zeros({2}, Dtype::f64);
  convert_into(source, target);
  CHECK(target.values<double>()[1] == 2);
  Tensor wrong = Tensor::zeros({2, 1}, Dtype::f64);
  CHECK_THROWS_WITH(convert_into(source, wrong), Contains("[2]") && Contains("[2, 1]"));
  CHECK_THROWS_WITH(convert_into(target.view(), target.span()), Contains("overlap"));
  CHECK_THROWS_AS(convert_into(TensorView(), target), InvalidArgument);
  CHECK_THROWS_AS(convert_into(source, TensorSpan()), InvalidArgument);

  std::vector<std::byte> bytes(9);
  std::memcpy(bytes.data() + 1, source.view().raw(), 8);
  const TensorView odd(bytes.data() + 1, {2}, Dtype::f32);
  CHECK(convert(odd, Dtype::f64).values<double>()[1] == 2);
  CHECK(Tensor::copy_of(odd).values<float>()[1] == 2);
}

}  // namespace packrnn
