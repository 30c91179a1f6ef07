// Any bytes at all, read as a safetensors file: either FileError, or every accessor works and stays
// within the bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/error.hpp"

namespace {

using packrnn::Dtype;
using packrnn::SafeTensors;
using packrnn::Tensor;

// abort() is what the fuzzer reports.
void require(bool ok) {
  if (!ok) std::abort();
}

// Reads every byte, so that the address sanitizer sees the whole extent.
unsigned sum(const Tensor& tensor) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.view().raw());
  unsigned total = 0;
  for (std::size_t i = 0; i < tensor.view().bytes(); ++i) total += bytes[i];
  return total;
}

// What may be refused of a tensor in a file that is otherwise right: Unsupported, or a conversion.
void look_at(const SafeTensors& file, const std::string& name) {
  require(file.contains(name));
  require(!file.dtype_name(name).empty());
  const std::optional<Dtype> dtype = file.dtype(name);
  std::optional<Tensor> tensor;
  try {
    require(file.shape(name).elements() >= 0);
    tensor = file.tensor(name);
  } catch (const packrnn::Unsupported&) {
    return;
  }
  require(dtype.has_value() && tensor->dtype() == *dtype);
  require(tensor->shape() == file.shape(name));
  require(sum(*tensor) == sum(file.tensor(name, dtype)));
  for (const Dtype as : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::i32}) {
    try {
      const Tensor converted = file.tensor(name, as);
      require(converted.dtype() == as && converted.shape() == tensor->shape());
    } catch (const packrnn::InvalidArgument&) {
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::optional<SafeTensors> file;
  try {
    file = SafeTensors::from_bytes(std::as_bytes(std::span(data, size)), "fuzz");
  } catch (const packrnn::FileError& error) {
    // Messages stay short, whatever is in the file.
    require(std::string(error.what()).size() < 1000);
    return 0;
  }
  for (const std::string& name : file->names()) look_at(*file, name);
  (void)file->metadata();
  try {
    require(file->state_dict().size() == file->names().size());
  } catch (const packrnn::Unsupported&) {
  }
  require(file->state_dict("no such prefix, most likely").size() <= file->names().size());
  return 0;
}
