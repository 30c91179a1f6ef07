// Memory shared with another framework through DLPack: in and out without a copy.
#include <dlpack/dlpack.h>

#include <cstdio>
#include <packrnn/packrnn.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

bool released = false;

// What another framework would hand over: here an array of our own, [4, 2, 3] floats.
struct Foreign {
  std::vector<float> values = std::vector<float>(4 * 2 * 3, 0.5F);
  std::int64_t shape[3] = {4, 2, 3};
  std::int64_t strides[3] = {6, 3, 1};
  DLManagedTensor managed{};

  Foreign() {
    managed.dl_tensor.data = values.data();
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 3;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.dl_tensor.strides = strides;
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      delete static_cast<Foreign*>(self->manager_ctx);
      released = true;
    };
  }
};

}  // namespace

int main() {
  packrnn::Context context(packrnn::Device::cpu());  // the memory below is the host's
  const packrnn::Lstm lstm({.input_size = 3, .hidden_size = 5});
  auto* foreign = new Foreign;
  const float* const their_memory = foreign->values.data();

  // [dlpack]
  // In: the tensor looks at the other framework's memory, and calls its deleter when it dies.
  packrnn::DLPackPtr handle(&foreign->managed);
  packrnn::Tensor x = packrnn::from_dlpack(handle);  // on success `handle` is empty
  packrnn::DenseOutput y = lstm.forward(context, x);

  // Out: the memory lives until the tensor and every handle are gone. handle.release() would pass
  // the handle on, to a Python capsule for example.
  packrnn::DLPackPtr out = packrnn::to_dlpack(y.output);
  // [/dlpack]
  const bool same_memory = x.values<float>().data() == their_memory &&
                           out->dl_tensor.data == std::as_const(y.output).view().raw();
  x = {};
  y = {};
  const auto* first = static_cast<const float*>(out->dl_tensor.data);
  std::printf("no copies: %s; their deleter ran: %s; output [%lld, %lld, %lld] starts with %.4f\n",
              same_memory ? "yes" : "NO", released ? "yes" : "NO",
              static_cast<long long>(out->dl_tensor.shape[0]),
              static_cast<long long>(out->dl_tensor.shape[1]),
              static_cast<long long>(out->dl_tensor.shape[2]), static_cast<double>(first[0]));

  // [refuse]
  // What would need a copy is refused, and stays with its owner: here every second row.
  foreign = new Foreign;
  foreign->shape[0] = 2;
  foreign->strides[0] = 12;
  packrnn::DLPackPtr strided(&foreign->managed);
  std::string message;
  try {
    packrnn::from_dlpack(strided);
  } catch (const packrnn::InvalidArgument& error) {
    message = error.what();
  }
  // [/refuse]
  std::printf("strided input: %s\n", message.c_str());
  return same_memory && released && !message.empty() && strided ? 0 : 1;
}
