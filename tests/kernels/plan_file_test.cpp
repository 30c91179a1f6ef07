// The file of measurements: what is stored is found, by any number of processes and threads, and
// nothing on the disk can do harm.
#include "packrnn/kernels/cuda/plan_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.hpp"
#include "tests/environment.hpp"

namespace packrnn::tests {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using kernels::cuda::PlanFile;

class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "packrnn-plans-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::ptrdiff_t files(const Folder& folder) {
  return std::distance(fs::directory_iterator(folder.path()), {});
}

}  // namespace

TEST_CASE("what is stored is found, also by others") {
  const Folder folder;
  PlanFile file(folder / "deeper/plans.json");
  CHECK_FALSE(file.find("a").has_value());
  CHECK(file.note().empty());  // a missing file is no news
  CHECK(file.store("a", {{"x", 1.5}, {"y", -2e-300}}));
  CHECK(file.store("b", {}));
  CHECK(file.store("a", {{"x", 0.1}}));
  const PlanFile other(folder / "deeper/plans.json");
  CHECK(other.find("a") == PlanFile::Record{{"x", 0.1}});  // to the bit
  CHECK(other.find("b") == PlanFile::Record{});
  CHECK_FALSE(other.find("c").has_value());
  CHECK(other.note().empty());
}

TEST_CASE("only finite numbers and text are stored") {
  const Folder folder;
  PlanFile file(folder / "plans.json");
  CHECK_FALSE(file.store("a", {{"x", std::nan("")}}));
  CHECK_THAT(file.note(), Contains("not finite"));
  CHECK_FALSE(file.store("a", {{"x", std::numeric_limits<double>::infinity()}}));
  CHECK_FALSE(file.store("\xff", {{"x", 1.0}}));
  CHECK_THAT(file.note(), Contains("not text"));
  CHECK(file.store("a", {{"x", 1.0}}));
}

TEST_CASE("the environment says where the file is") {
  const Environment cache("PACKRNN_CACHE", nullptr), xdg("XDG_CACHE_HOME", "/x/cache"),
      home("HOME", "/x/home");
  CHECK(PlanFile::from_environment() == "/x/cache/packrnn/plans-1.json");
  CHECK(PlanFile::from_environment(true).empty());
  {
    const Environment relative("XDG_CACHE_HOME", "cache");
    CHECK(PlanFile::from_environment() == "/x/home/.cache/packrnn/plans-1.json");
    const Environment homeless("HOME", nullptr);
    CHECK(PlanFile::from_environment().empty());
  }
  const Environment asked("PACKRNN_CACHE", "/y");
  CHECK(PlanFile::from_environment() == "/y/plans-1.json");
  CHECK(PlanFile::from_environment(true) == "/y/plans-1.json");
  const Environment off("PACKRNN_CACHE", "off");
  CHECK(PlanFile::from_environment().empty());
}

TEST_CASE("without a place nothing is kept and nothing is said") {
  PlanFile nowhere{fs::path()};
  CHECK_FALSE(nowhere.store("a", {{"x", 1.0}}));
  CHECK_FALSE(nowhere.find("a").has_value());
  CHECK(nowhere.note().empty());
  const Folder folder;  // root may write anywhere, so a file where a folder should be
  write(folder / "home", "");
  PlanFile impossible(folder / "home/cache/plans.json");
  CHECK_FALSE(impossible.store("a", {{"x", 1.0}}));
  CHECK_FALSE(impossible.find("a").has_value());
  CHECK(impossible.note().empty());
}

TEST_CASE("a damaged file is ignored with a note, and replaced") {
  const Folder folder;
  const fs::path path = folder / "plans.json";
  PlanFile file(path);
  REQUIRE(file.store("key", {{"x", 3.0}}));
  const std::string good = read(path);
  SECTION("cut at every byte") {
    for (std::size_t length = 0; length + 1 < good.size(); ++length) {
      write(path, good.substr(0, length));
      INFO(length);
      REQUIRE_FALSE(file.find("key").has_value());
      REQUIRE_FALSE(file.note().empty());
    }
    REQUIRE(file.store("other", {{"x", 4.0}}));
    CHECK_THAT(file.note(), Contains("replaced"));
    CHECK(file.find("other") == PlanFile::Record{{"x", 4.0}});
  }
  SECTION("every byte changed") {
    for (std::size_t i = 0; i < good.size(); ++i)
      for (const char byte : {'\0', '"', '}', '9', 'e', '\xff'}) {
        std::string bad = good;
        bad[i] = byte;
        write(path, bad);
        INFO(i << " to " << int(byte));
        if (const auto record = file.find("key"))
          for (const auto& [name, value] : *record) REQUIRE(std::isfinite(value));
      }
  }
  SECTION("hostile texts") {
    const auto whole = [](const std::string& records) {
      return R"({"packrnn_plans":1,"records":)" + records + "}";
    };
    for (const std::string& text :
         {std::string("null"), std::string("[]"), std::string(100000, '['),
          std::string(R"({"packrnn_plans":2,"records":{"key":{"values":{},"stored":1}}})"),
          std::string(R"({"records":{"key":{"values":{},"stored":1}}})"), whole("[]"),
          whole(R"({"key":1})"), whole(R"({"key":{"values":[],"stored":1}})"),
          whole(R"({"key":{"values":{"x":"1"},"stored":1}})"),
          whole(R"({"key":{"values":{"x":null},"stored":1}})"),
          whole(R"({"key":{"values":{"x":1e999},"stored":1}})"),
          whole(R"({"key":{"values":{"x":1}}})"), std::string(PlanFile::kMostBytes + 1, ' ')}) {
      write(path, text);
      INFO(text.substr(0, 70));
      CHECK_FALSE(file.find("key").has_value());
      CHECK_FALSE(file.note().empty());
    }
  }
  SECTION("not a file") {
    fs::remove(path);
    fs::create_directory(path);
    CHECK_FALSE(file.find("key").has_value());
    CHECK_FALSE(file.note().empty());
    CHECK_FALSE(file.store("key", {}));
    CHECK_FALSE(file.note().empty());
  }
  SECTION("a pipe, which nobody writes to") {
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_FALSE(file.find("key").has_value());
    CHECK_THAT(file.note(), Contains("not a file"));
  }
}

TEST_CASE("old records make room") {
  const Folder folder;
  const fs::path path = folder / "plans.json";
  std::string text = R"({"packrnn_plans":1,"records":{)";
  for (std::size_t i = 0; i < PlanFile::kMostRecords; ++i)
    text += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"values":{},"stored":)" +
            std::to_string(i == 77 ? 0 : 1) + "}";
  write(path, text + "}}");
  PlanFile file(path);
  REQUIRE(file.find("77").has_value());
  REQUIRE(file.store("new", {{"x", 1.0}}));
  CHECK(file.find("new").has_value());
  CHECK_FALSE(file.find("77").has_value());
  CHECK(file.find("78").has_value());
}

TEST_CASE("processes and threads that write at the same time lose nothing") {
  constexpr int kProcesses = 8, kThreads = 2, kRecords = 6;
  const Folder folder;
  const fs::path path = folder / "plans.json";
  const auto key = [](int process, int thread, int record) {
    return std::to_string(process) + "." + std::to_string(thread) + "." + std::to_string(record);
  };
  const auto work = [&](int process, int thread) {
    PlanFile file(path);
    bool good = true;
    for (int i = 0; i < kRecords; ++i) {
      // On a crowded machine a turn may take longer than store() waits.
      while (!file.store(key(process, thread, i), {{"x", double(i)}}))
        good = good && file.note().find("lock") != std::string::npos;
      good = good && file.find(key(process, thread, i)).has_value() && file.note().empty();
    }
    return good;
  };
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::atomic<bool> good{true};
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
          if (!work(p, t)) good = false;
        });
      for (std::thread& thread : threads) thread.join();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const PlanFile file(path);
  for (int p = 0; p < kProcesses; ++p)
    for (int t = 0; t < kThreads; ++t)
      for (int i = 0; i < kRecords; ++i) {
        INFO(key(p, t, i));
        CHECK(file.find(key(p, t, i)) == PlanFile::Record{{"x", double(i)}});
      }
  CHECK(files(folder) == 2);  // the file and its lock: nothing left over
}

TEST_CASE("a lock that is held costs the record, not the call") {
  const Folder folder;
  PlanFile file(folder / "plans.json");
  REQUIRE(file.store("a", {{"x", 1.0}}));
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int lock = ::open((folder / "plans.json.lock").c_str(), O_RDWR);
    const bool held = ::flock(lock, LOCK_EX) == 0 && ::write(ready[1], "x", 1) == 1;
    if (held) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_FALSE(file.store("b", {{"x", 2.0}}));
  CHECK_THAT(file.note(), Contains("lock"));
  CHECK(file.find("a").has_value());
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  CHECK(file.store("b", {{"x", 2.0}}));  // the lock died with its holder
}

}  // namespace packrnn::tests
