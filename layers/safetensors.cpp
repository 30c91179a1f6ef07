#include "packrnn/layers/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "packrnn/layers/safetensors_header.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void refuse_open(const std::string& name, int error) {
  throw FileError(
      fmt::format("'{}': cannot be opened: {}", name, std::generic_category().message(error)));
}

// The whole file, pages private to us: a tensor's memory is writable by contract, the file is not.
Buffer map_file(const std::filesystem::path& path, const std::string& name) {
  if (path.native().find('\0') != std::string::npos)
    throw FileError("a file name with a zero byte cannot be opened");
  // Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) refuse_open(name, errno);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) refuse_open(name, errno);
  if (!S_ISREG(status.st_mode))
    throw FileError(
        fmt::format("'{}': {}", name,
                    S_ISDIR(status.st_mode) ? "is a folder, not a file" : "is not a regular file"));
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return {};  // cannot be mapped; the header check says what is wrong with it
  // NORESERVE: nobody is going to write most of these pages, so they need no swap space.
  void* data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED)
    throw FileError(fmt::format("'{}': its {} bytes cannot be mapped: {}", name, bytes,
                                std::generic_category().message(errno)));
  return Buffer::adopt(Device::cpu(), data, bytes, [data, bytes] { ::munmap(data, bytes); });
}

std::span<const std::byte> bytes_of(const Buffer& buffer) {
  return {static_cast<const std::byte*>(buffer.data()), buffer.size()};
}

}  // namespace

SafeTensors::SafeTensors(std::shared_ptr<Buffer> storage, const std::string& name)
    : storage_(std::move(storage)),
      header_(
          std::make_shared<SafeTensorsHeader>(read_safetensors_header(bytes_of(*storage_), name))) {
}

SafeTensors SafeTensors::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  return {std::make_shared<Buffer>(map_file(path, name)), name};
}

SafeTensors SafeTensors::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  auto storage = std::make_shared<Buffer>(Buffer::allocate(Device::cpu(), bytes.size()));
  if (!bytes.empty()) std::memcpy(storage->data(), bytes.data(), bytes.size());
  return {std::move(storage), name};
}

const std::vector<std::string>& SafeTensors::names() const noexcept { return header_->names; }

bool SafeTensors::contains(std::string_view name) const noexcept {
  return header_->find(name) != header_->names.size();
}

const std::map<std::string, std::string>& SafeTensors::metadata() const noexcept {
  return header_->metadata;
}

std::size_t SafeTensors::find(std::string_view name) const {
  const std::size_t i = header_->find(name);
  if (i == header_->names.size()) {
    constexpr std::size_t kMost = 8;
    std::string some;
    for (std::size_t k = 0; k < std::min(kMost, header_->names.size()); ++k)
      some += fmt::format("{}{}", k == 0 ? ": " : ", ", shown(header_->names[k]));
    throw InvalidArgument(fmt::format("no tensor {} in the file; it has {}{}{}", shown(name),
                                      header_->names.size(), some,
                                      header_->names.size() > kMost ? ", ..." : ""));
  }
  return i;
}

std::optional<Dtype> SafeTensors::dtype(std::string_view name) const {
  return header_->entries[find(name)].dtype->ours;
}

std::string_view SafeTensors::dtype_name(std::string_view name) const {
  return header_->entries[find(name)].dtype->name;
}

Shape SafeTensors::shape(std::string_view name) const {
  const SafeTensorsEntry& entry = header_->entries[find(name)];
  if (entry.extents.size() > static_cast<std::size_t>(Shape::kMaxRank))
    throw Unsupported(fmt::format("tensor {} has {} dimensions, more than the {} of packrnn",
                                  shown(name), entry.extents.size(), Shape::kMaxRank));
  return Shape(std::span<const std::int64_t>(entry.extents));
}

Tensor SafeTensors::tensor(std::string_view name, std::optional<Dtype> as) const {
  const SafeTensorsEntry& entry = header_->entries[find(name)];
  if (!entry.dtype->ours)
    throw Unsupported(
        fmt::format("tensor {} has dtype {}, which packrnn has not; use one of F32, F64, F16, "
                    "BF16, I32, I64",
                    shown(name), entry.dtype->name));
  const Dtype stored = *entry.dtype->ours;
  const Shape extents = shape(name);
  auto* data = static_cast<std::byte*>(storage_->data()) + header_->data_begin + entry.begin;

  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % size_of(stored) == 0;
  Tensor result;
  if (aligned) {
    result = Tensor::share(storage_, data, extents, stored);
  } else {
    result = Tensor::empty(extents, stored);
    if (entry.end > entry.begin) std::memcpy(result.span().raw(), data, entry.end - entry.begin);
  }
  return as && *as != stored ? convert(result, *as) : std::move(result);
}

StateDict SafeTensors::state_dict(std::string_view prefix) const {
  StateDict state;
  for (const std::string& name : header_->names)
    if (name.starts_with(prefix)) state.push_back({name.substr(prefix.size()), tensor(name)});
  return state;
}

}  // namespace packrnn
