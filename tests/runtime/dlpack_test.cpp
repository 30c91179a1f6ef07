#include <dlpack/dlpack.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <packrnn/runtime/context.hpp>
#include <packrnn/runtime/dlpack.hpp>
#include <packrnn/runtime/error.hpp>
#include <vector>

#include "tests/catch.hpp"

namespace packrnn {
namespace {

using Catch::Contains;

/// What another framework would hand over; counts how often it was released.
struct Foreign {
  std::vector<float> data{0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides;
  int released = 0;
  DLManagedTensor managed{};

  Foreign() {
    managed.dl_tensor.data = data.data();
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->released;
    };
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  DLTensor& tensor() { return managed.dl_tensor; }
  DLPackPtr handle() {
    tensor().ndim = static_cast<std::int32_t>(shape.size());
    tensor().shape = shape.empty() ? nullptr : shape.data();
    tensor().strides = strides.empty() ? nullptr : strides.data();
    return DLPackPtr(&managed);
  }
};

/// Imports, expects refusal with `part` in the message and the handle still the caller's.
void check_refused(Foreign& foreign, const std::string& part) {
  {
    DLPackPtr handle = foreign.handle();
    CHECK_THROWS_AS(from_dlpack(handle), InvalidArgument);
    CHECK_THROWS_WITH(from_dlpack(handle), Contains(part));
    CHECK(handle.get() == &foreign.managed);
    CHECK(foreign.released == 0);
  }
  CHECK(foreign.released == 1);
}

void check_accepted(Foreign& foreign, const Shape& shape) {
  {
    DLPackPtr handle = foreign.handle();
    const Tensor tensor = from_dlpack(handle);
    CHECK(handle == nullptr);
    CHECK(tensor.shape() == shape);
    CHECK(foreign.released == 0);
  }
  CHECK(foreign.released == 1);
}

}  // namespace

TEST_CASE("export shows every dtype's type, shape, strides and memory") {
  const auto check = [](Dtype dtype, std::uint8_t code, std::uint8_t bits) {
    CAPTURE(name_of(dtype));
    const Tensor tensor = Tensor::zeros({2, 3, 4}, dtype);
    const DLPackPtr handle = to_dlpack(tensor);
    const DLTensor& out = handle->dl_tensor;
    CHECK(out.data == tensor.view().raw());
    CHECK(out.byte_offset == 0);
    CHECK(out.device.device_type == kDLCPU);
    CHECK(out.dtype.code == code);
    CHECK(out.dtype.bits == bits);
    CHECK(out.dtype.lanes == 1);
    REQUIRE(out.ndim == 3);
    CHECK(std::vector(out.shape, out.shape + 3) == std::vector<std::int64_t>{2, 3, 4});
    CHECK(std::vector(out.strides, out.strides + 3) == std::vector<std::int64_t>{12, 4, 1});
  };
  check(Dtype::f32, kDLFloat, 32);
  check(Dtype::f64, kDLFloat, 64);
  check(Dtype::f16, kDLFloat, 16);
  check(Dtype::bf16, kDLBfloat, 16);
  check(Dtype::i32, kDLInt, 32);
  check(Dtype::i64, kDLInt, 64);
  CHECK_THROWS_AS(to_dlpack(Tensor()), InvalidArgument);
}

TEST_CASE("exported memory lives until tensor and handles are gone, in every order") {
  for (int order = 0; order < 6; ++order) {
    CAPTURE(order);
    Tensor tensor = Tensor::from({1.0F, 2.0F}, {2});
    const std::weak_ptr<Buffer> alive = tensor.storage();
    std::array<DLPackPtr, 2> handles{to_dlpack(tensor), to_dlpack(tensor)};
    const std::array<std::array<int, 3>, 6> orders{
        {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}};
    int left = 3;
    for (const int which : orders[static_cast<std::size_t>(order)]) {
      CHECK_FALSE(alive.expired());
      if (which == 2)
        tensor = Tensor();
      else
        handles[static_cast<std::size_t>(which)].reset();
      --left;
      for (const DLPackPtr& handle : handles)
        if (handle) CHECK(static_cast<const float*>(handle->dl_tensor.data)[1] == 2.0F);
    }
    CHECK(left == 0);
    CHECK(alive.expired());
  }
}

TEST_CASE("a tensor goes out and comes back without a copy, in every order of destruction") {
  for (const bool original_first : {true, false}) {
    Tensor tensor = Tensor::from({1.0F, 2.0F, 3.0F}, {3, 1});
    const std::weak_ptr<Buffer> alive = tensor.storage();
    const void* data = tensor.view().raw();
    DLPackPtr handle = to_dlpack(tensor);
    Tensor back = from_dlpack(handle);
    CHECK(handle == nullptr);
    CHECK(back.view().raw() == data);
    CHECK(back.shape() == Shape{3, 1});
    DLPackPtr third = to_dlpack(back);  // a handle of a handle
    (original_first ? tensor : back) = Tensor();
    CHECK_FALSE(alive.expired());
    (original_first ? back : tensor) = Tensor();
    CHECK_FALSE(alive.expired());
    CHECK(static_cast<const float*>(third->dl_tensor.data)[2] == 3.0F);
    third.reset();
    CHECK(alive.expired());
  }
}

TEST_CASE("an imported tensor reads and writes foreign memory and releases it once") {
  Foreign foreign;
  {
    DLPackPtr handle = foreign.handle();
    Tensor tensor = from_dlpack(handle);
    CHECK(tensor.dtype() == Dtype::f32);
    CHECK(tensor.values<float>()[5] == 5);
    tensor.values<float>()[0] = 9;
    Tensor moved = std::move(tensor).reshape({6});
    CHECK(foreign.released == 0);
  }
  CHECK(foreign.released == 1);
  CHECK(foreign.data[0] == 9);
}

TEST_CASE("a producer without a deleter is legal") {
  Foreign foreign;
  foreign.managed.deleter = nullptr;
  DLPackPtr handle = foreign.handle();
  CHECK(from_dlpack(handle).elements() == 6);
}

TEST_CASE("strides are accepted when they spell contiguous rows") {
  Foreign contiguous;
  contiguous.strides = {3, 1};
  check_accepted(contiguous, {2, 3});
  Foreign ones;  // a dimension of one element may say anything
  ones.shape = {1, 2, 1, 3, 1};
  ones.strides = {-7, 3, 0, 1, 1000};
  check_accepted(ones, {1, 2, 1, 3, 1});
  Foreign none;
  none.shape = {2, 0};
  none.strides = {17, -4};
  check_accepted(none, {2, 0});
}

TEST_CASE("strided tensors are refused with the stride") {
  Foreign transposed;
  transposed.strides = {1, 2};
  check_refused(transposed, "stride 2, but 1");
  Foreign sliced;
  sliced.shape = {2, 2};
  sliced.strides = {3, 1};
  check_refused(sliced, "stride 3, but 2");
  Foreign broadcast;
  broadcast.strides = {0, 1};
  check_refused(broadcast, "dimension 0 has stride 0");
  Foreign reversed;
  reversed.shape = {6};
  reversed.strides = {-1};
  check_refused(reversed, "stride -1");
}

TEST_CASE("byte_offset counts") {
  Foreign foreign;
  foreign.shape = {2};
  foreign.tensor().byte_offset = 16;
  {
    DLPackPtr handle = foreign.handle();
    const Tensor tensor = from_dlpack(handle);
    CHECK(tensor.values<float>()[0] == 4);
    const DLPackPtr again = to_dlpack(tensor);
    CHECK(again->dl_tensor.data == &foreign.data[4]);
  }
  Foreign odd;
  odd.shape = {1};
  odd.tensor().byte_offset = 2;
  check_refused(odd, "byte_offset 2");
  Foreign wraps;
  wraps.tensor().byte_offset = std::numeric_limits<std::uint64_t>::max() - 3;
  check_refused(wraps, "byte_offset 18446744073709551612");
}

TEST_CASE("foreign devices are refused, pinned host memory is not") {
  for (const int type : {int{kDLCUDA}, int{kDLOpenCL}, int{kDLROCM}, int{kDLCUDAManaged}, 99}) {
    Foreign foreign;
    foreign.tensor().device.device_id = 99;
    std::memcpy(&foreign.tensor().device.device_type, &type, sizeof(type));  // 99 is no enumerator
    check_refused(foreign, type == kDLCUDA ? "cuda:99"
                                           : "device type " + std::to_string(type) + " (index 99)");
  }
  Foreign negative;
  negative.tensor().device = {kDLCUDA, -1};
  check_refused(negative, "cuda:-1");
  Foreign pinned;
  pinned.tensor().device = {kDLCUDAHost, 0};
  check_accepted(pinned, {2, 3});
}

TEST_CASE("tensors on a GPU go out and come in") {
  Context context;
  if (context.device().type == DeviceType::cpu) PACKRNN_SKIP("there is no GPU");
  Tensor tensor = context.to_device(Tensor::from<float>({1, 2, 3}, {3}));
  const void* const data = tensor.view().raw();
  DLPackPtr handle = to_dlpack(tensor);
  CHECK(handle->dl_tensor.device.device_type == kDLCUDA);
  CHECK(handle->dl_tensor.device.device_id == context.device().index);
  tensor = Tensor();
  Tensor again = from_dlpack(handle);
  CHECK(again.device() == context.device());
  CHECK(again.view().raw() == data);
  const Tensor host = context.to_host(again);
  CHECK(host.values<float>()[2] == 3.0F);
  again = Tensor();
  context.synchronize();
}

TEST_CASE("dtypes that packrnn lacks are refused") {
  const auto check = [](DLDataType type, const std::string& part) {
    Foreign foreign;
    foreign.tensor().dtype = type;
    check_refused(foreign, part);
  };
  check({kDLFloat, 32, 4}, "4 lanes");
  check({kDLFloat, 32, 0}, "0 lanes");
  check({kDLUInt, 8, 1}, "8 bits");
  check({kDLInt, 16, 1}, "16 bits");
  check({kDLFloat, 8, 1}, "code 2, 8 bits");
  check({kDLBfloat, 32, 1}, "code 4");
  check({kDLComplex, 64, 1}, "code 5");
}

TEST_CASE("shapes that cannot be are refused") {
  Foreign negative;
  negative.shape = {2, -3};
  check_refused(negative, "-3");
  Foreign many;
  many.shape.assign(9, 1);
  check_refused(many, "9 dimensions");
  Foreign overflow;
  overflow.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  check_refused(overflow, "int64");
  Foreign bytes;
  bytes.shape = {std::numeric_limits<std::int64_t>::max()};
  check_refused(bytes, "bytes");
  Foreign no_shape;
  DLPackPtr handle = no_shape.handle();
  no_shape.tensor().shape = nullptr;
  CHECK_THROWS_WITH(from_dlpack(handle), Contains("no shape"));
  no_shape.tensor().ndim = -1;
  CHECK_THROWS_WITH(from_dlpack(handle), Contains("-1 dimensions"));
  CHECK(handle != nullptr);
}

TEST_CASE("scalars, empty tensors and null data") {
  Foreign scalar;
  scalar.shape = {};
  check_accepted(scalar, {});
  Foreign empty;
  empty.shape = {4, 0, 2};
  empty.tensor().data = nullptr;
  check_accepted(empty, {4, 0, 2});
  Foreign null;
  null.tensor().data = nullptr;
  check_refused(null, "null");
  DLPackPtr nothing;
  CHECK_THROWS_AS(from_dlpack(nothing), InvalidArgument);

  const DLPackPtr out = to_dlpack(Tensor::from({4.0F}, {}));
  CHECK(out->dl_tensor.ndim == 0);
  CHECK(static_cast<const float*>(out->dl_tensor.data)[0] == 4);
  DLPackPtr zero = to_dlpack(Tensor::zeros({0, 3}, Dtype::i64));
  CHECK(from_dlpack(zero).shape() == Shape{0, 3});
}

}  // namespace packrnn
