#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "packrnn/layers/safetensors.hpp"
#include "packrnn/runtime/error.hpp"
#include "tests/catch.hpp"
#include "tests/layers/safetensors_files.hpp"

namespace packrnn::tests {
namespace {

using Catch::Contains;

StateDict one(std::string name, Tensor tensor) {
  StateDict state;
  state.push_back({std::move(name), std::move(tensor)});
  return state;
}

StateDict full_of(float value, std::int64_t count) {
  return one(
      "v", Tensor::from(std::vector<float>(static_cast<std::size_t>(count), value), Shape{count}));
}

// While one lives, files cannot grow beyond `bytes`: writes fail in the middle, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit old_{};
};

TEST_CASE("every dtype survives saving and opening, bit by bit") {
  const TemporaryFolder folder;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  StateDict state;
  state.push_back({"f16", Tensor::from({Half(1.5F), Half(-0.0F), Half(kInf)}, Shape{3})});
  state.push_back({"f64", Tensor::from({0.1, -1e300}, Shape{2, 1})});
  state.push_back({"i32", Tensor::from<std::int32_t>({-1, 1 << 30}, Shape{1, 2})});
  state.push_back({"bf16", Tensor::from({BFloat16(3.0F)}, Shape{})});
  state.push_back({"f32", Tensor::from({0.1F, -0.0F, kInf, std::nanf("7")}, Shape{4})});
  state.push_back({"i64", Tensor::from<std::int64_t>({-(std::int64_t{1} << 62)}, Shape{1})});
  state.push_back({"none", Tensor::zeros(Shape{3, 0, 2}, Dtype::f64)});

  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"\xC3\xA9\n\"", ""}};
  save_safetensors(folder / "a", state, metadata);
  const SafeTensors file = SafeTensors::open(folder / "a");
  CHECK(file.metadata() == metadata);
  const StateDict back = file.state_dict();
  REQUIRE(back.size() == state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    INFO(state[i].name);
    const TensorView saved = state[i].tensor.view();
    const TensorView read = back[i].tensor.view();
    CHECK(back[i].name == state[i].name);
    CHECK(read.dtype() == saved.dtype());
    CHECK(read.shape() == saved.shape());
    CHECK(std::memcmp(read.raw(), saved.raw(), saved.bytes()) == 0);
    // Shared with the file: so the writer did align it.
    CHECK(file.tensor(state[i].name).view().raw() == read.raw());
  }
  save_safetensors(folder / "b", back, metadata);
  CHECK(read_file(folder / "b") == read_file(folder / "a"));
}

TEST_CASE("the bytes of a file are these") {
  const TemporaryFolder folder;
  StateDict state;
  state.push_back({"b", Tensor::from({Half(1.0F)}, Shape{1})});
  state.push_back({"a", Tensor::from({1.0F}, Shape{1, 1})});
  save_safetensors(folder / "file", state, {{"k", "v"}});
  std::string header =
      "{\"__metadata__\":{\"k\":\"v\"},"
      "\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[4,6]},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(read_file(folder / "file") ==
        raw_file(header.size(), header + std::string("\x00\x00\x80\x3f\x00\x3c", 6)));
}

TEST_CASE("an empty state dict is a file too") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", {});
  CHECK(read_file(folder / "file") == raw_file(8, "{}      "));
  CHECK(SafeTensors::open(folder / "file").names().empty());
}

TEST_CASE("a state dict that no file can hold is refused before anything is written") {
  const TemporaryFolder folder;
  const auto path = folder / "file";
  const auto refused = [&](const StateDict& state, const std::string& reason) {
    CHECK_THROWS_AS(save_safetensors(path, state), InvalidArgument);
    CHECK_THROWS_WITH(save_safetensors(path, state), Contains(reason));
  };
  StateDict twice = full_of(1.0F, 1);
  twice.push_back({"v", Tensor::zeros(Shape{2}, Dtype::f32)});
  refused(twice, "\"v\" appears twice");
  refused(one("__metadata__", Tensor::zeros(Shape{}, Dtype::f32)), "cannot be a tensor's name");
  refused(one("gone", Tensor{}), "\"gone\" is not defined");
  refused(one("\xFF", Tensor::zeros(Shape{}, Dtype::f32)), "not valid UTF-8");
  CHECK_THROWS_WITH(save_safetensors(path, {}, {{"k", "\xC3"}}),
                    Contains("metadata value") && Contains("not valid UTF-8"));
  CHECK(folder.files() == 0);
}

TEST_CASE("a failed save leaves no file and keeps the old one") {
  const TemporaryFolder folder;
  const auto path = folder / "model";
  SECTION("no such folder") {
    const auto missing = folder / "no" / "model";
    CHECK_THROWS_AS(save_safetensors(missing, full_of(1.0F, 4)), FileError);
    CHECK_THROWS_WITH(save_safetensors(missing, full_of(1.0F, 4)),
                      Contains(missing.string()) && Contains("No such file"));
    CHECK(folder.files() == 0);
  }
  SECTION("the target is a folder, a pipe, a device or nothing") {
    std::filesystem::create_directory(folder / "sub");
    CHECK_THROWS_AS(save_safetensors(folder / "sub", full_of(1.0F, 4)), FileError);
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(save_safetensors(folder / "pipe", full_of(1.0F, 4)),
                      Contains("not the name of a regular file"));
    CHECK_THROWS_AS(save_safetensors("/dev/null", full_of(1.0F, 4)), FileError);
    CHECK_THROWS_AS(save_safetensors("", full_of(1.0F, 4)), FileError);
    CHECK(folder.files() == 2);
  }
  SECTION("the disk is full in the middle") {
    save_safetensors(path, full_of(1.0F, 4));
    const std::string before = read_file(path);
    {
      const FileSizeLimit limit(4096);
      CHECK_THROWS_AS(save_safetensors(path, full_of(2.0F, 100'000)), FileError);
      CHECK_THROWS_AS(save_safetensors(folder / "other", full_of(2.0F, 100'000)), FileError);
    }
    CHECK(folder.files() == 1);
    CHECK(read_file(path) == before);
  }
  SECTION("the folder may not be written") {
    if (::geteuid() == 0) PACKRNN_SKIP("root may write everywhere");
    save_safetensors(path, full_of(1.0F, 4));
    const std::string before = read_file(path);
    ::chmod(folder.path().c_str(), 0500);
    CHECK_THROWS_AS(save_safetensors(path, full_of(2.0F, 4)), FileError);
    ::chmod(folder.path().c_str(), 0700);
    CHECK(folder.files() == 1);
    CHECK(read_file(path) == before);
  }
}

TEST_CASE("saving over the file that the tensors are mapped from") {
  const TemporaryFolder folder;
  const auto path = folder / "model";
  save_safetensors(path, full_of(3.0F, 100'000));
  StateDict state = SafeTensors::open(path).state_dict();
  state[0].tensor.values<float>()[0] = 4.0F;
  save_safetensors(path, state);
  const Tensor back = SafeTensors::open(path).tensor("v");
  CHECK(back.values<float>()[0] == 4.0F);
  CHECK(back.values<float>()[99'999] == 3.0F);
  CHECK(folder.files() == 1);
}

TEST_CASE("a name without a folder is in the working folder") {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  save_safetensors("model", full_of(1.0F, 2));
  std::filesystem::current_path(before);
  CHECK(SafeTensors::open(folder / "model").contains("v"));
  CHECK(folder.files() == 1);
}

TEST_CASE("readers see an old or a new file, never a mixture, while it is replaced") {
  const TemporaryFolder folder;
  const auto path = folder / "model";
  constexpr std::int64_t kCount = 20'000;
  save_safetensors(path, full_of(0.0F, kCount));
  std::atomic<bool> done = false;
  std::atomic<int> reads = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  readers.reserve(3);
  for (int r = 0; r < 3; ++r)
    readers.emplace_back([&] {
      while (!done) {
        try {
          const Tensor tensor = SafeTensors::open(path).tensor("v");
          const auto values = tensor.values<float>();
          for (const float value : values)
            if (value != values[0]) {
              ++wrong;
              break;
            }
        } catch (const Error&) {
          ++wrong;
        }
        ++reads;
      }
    });
  // Two writers, which also must not take each other's temporary files.
  const auto write = [&](int first) {
    for (int i = 0; i < 25; ++i)
      save_safetensors(path, full_of(static_cast<float>(first + i), kCount));
  };
  std::thread other(write, 100);
  write(200);
  other.join();
  while (reads < 3) std::this_thread::yield();
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(folder.files() == 1);
}

}  // namespace
}  // namespace packrnn::tests
