// Writing safetensors files; reading is safetensors.cpp.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/layers/safetensors_header.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {
namespace {

// A JSON string, quotes included.
std::string json_string(const std::string& text, std::string_view what) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw InvalidArgument(fmt::format("{} {} is not valid UTF-8", what, shown(text)));
  }
}

void check(const StateDict& state) {
  std::set<std::string_view> names;
  for (const NamedTensor& entry : state) {
    expects(entry.name != "__metadata__", "state: \"__metadata__\" cannot be a tensor's name");
    expects(names.insert(entry.name).second, "state: {} appears twice", shown(entry.name));
    expects(entry.tensor.defined(), "state: tensor {} is not defined", shown(entry.name));
    expects(entry.tensor.device() == Device::cpu(), "state: tensor {} lies on {}, expected cpu",
            shown(entry.name), entry.tensor.device().name());
  }
}

// Larger elements first: then every tensor begins at a multiple of its element size, without gaps.
std::vector<std::size_t> data_order(const StateDict& state) {
  std::vector<std::size_t> order(state.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(state[a].tensor.dtype()) > size_of(state[b].tensor.dtype());
  });
  return order;
}

std::string make_header(const StateDict& state, const std::vector<std::size_t>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::size_t, std::size_t>> offsets(state.size());
  std::size_t position = 0;
  for (const std::size_t i : order) {
    const std::size_t bytes = state[i].tensor.view().bytes();
    offsets[i] = {position, position + bytes};
    position += bytes;
  }
  std::string json = "{";
  const auto separate = [&json](char opening) {
    if (json.back() != opening) json += ',';
  };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate('{');
      json += json_string(key, "metadata key") + ':' + json_string(value, "metadata value");
    }
    json += '}';
  }
  for (std::size_t i = 0; i < state.size(); ++i) {
    const Tensor& tensor = state[i].tensor;
    separate('{');
    json +=
        fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    json_string(state[i].name, "state: name"), safetensors_name(tensor.dtype()),
                    fmt::join(tensor.shape().extents(), ","), offsets[i].first, offsets[i].second);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  expects(json.size() <= SafeTensors::kMaxHeaderBytes,
          "state: its header would have {} bytes, more than the {} that readers accept",
          json.size(), SafeTensors::kMaxHeaderBytes);
  return json;
}

// A new file next to the one it is going to replace; gone again unless it got there.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path target) : target_(std::move(target)) {
    // The number only keeps writers of this process apart; O_EXCL decides.
    static std::atomic<unsigned> number = 0;
    const std::filesystem::path folder = target_.parent_path();
    do {
      path_ = folder / fmt::format(".packrnn-{}-{}.tmp", ::getpid(), number++);
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd_ < 0 && errno == EEXIST);
    if (fd_ < 0) fail("cannot be written: no file can be made in its folder");
  }
  ~TemporaryFile() {
    if (fd_ >= 0) {
      ::close(fd_);
      ::unlink(path_.c_str());
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ::ssize_t written = ::write(fd_, next, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot be written");
      next += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail("cannot be written to disk");
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail("cannot be replaced");
    ::close(std::exchange(fd_, -1));
    // So that the new name survives a power cut, too. The file is whole either way: not an error.
    const std::filesystem::path parent = target_.parent_path();
    const int folder =
        ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      ::fsync(folder);
      ::close(folder);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) {
    const int error = errno;
    throw FileError(fmt::format("'{}': {}: {}", target_.string(), what,
                                std::generic_category().message(error)));
  }

  std::filesystem::path target_;
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace

void save_safetensors(const std::filesystem::path& path, const StateDict& state,
                      const std::map<std::string, std::string>& metadata) {
  check(state);
  const std::vector<std::size_t> order = data_order(state);
  const std::string header = make_header(state, order, metadata);

  // A rename would replace a device or a pipe by a file.
  struct stat status = {};
  if (path.native().find('\0') != std::string::npos || !path.has_filename() ||
      (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)))
    throw FileError(fmt::format("'{}': is not the name of a regular file", path.string()));

  TemporaryFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof(length));
  file.write(header.data(), header.size());
  for (const std::size_t i : order) {
    const TensorView view = state[i].tensor.view();
    file.write(view.raw(), view.bytes());
  }
  file.commit();
}

}  // namespace packrnn
