#include "packrnn/kernels/cuda/plan_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace packrnn::kernels::cuda {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// How long store() waits for another one's turn, which takes well below a millisecond. A holder
// that hangs (a network file system) costs the record.
constexpr std::chrono::milliseconds kPatience{500};

/// A file's descriptor; -1: none.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags)
      : value_(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600)) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool close() noexcept {
    return value_ < 0 || ::close(std::exchange(value_, -1)) == 0;  // EIO counts: a disk is full
  }
  explicit operator bool() const noexcept { return value_ >= 0; }
  int operator*() const noexcept { return value_; }

 private:
  int value_;
};

/// What a file holds, or why it is ignored. A missing file is neither.
struct Contents {
  json records = json::object();  // key: {"values": {name: number}, "stored": seconds}
  std::string problem;
};

bool well_formed(const json& record) {
  if (!record.is_object()) return false;
  const auto values = record.find("values"), stored = record.find("stored");
  if (values == record.end() || !values->is_object()) return false;
  if (stored == record.end() || !stored->is_number()) return false;
  return std::all_of(values->begin(), values->end(), [](const json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  });
}

Contents parse(const std::string& text) {
  Contents contents;
  const json file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded() || !file.is_object()) {
    contents.problem = "is not a JSON object";
    return contents;
  }
  const auto format = file.find("packrnn_plans"), records = file.find("records");
  if (format == file.end() || *format != PlanFile::kFormat)
    contents.problem = "is of another version";
  else if (records == file.end() || !records->is_object() ||
           !std::all_of(records->begin(), records->end(), well_formed))
    contents.problem = "has a malformed record";
  else
    contents.records = *records;
  return contents;
}

Contents load(const fs::path& path) {
  const auto problem = [](std::string text) {
    Contents contents;
    contents.problem = std::move(text);
    return contents;
  };
  const Descriptor file(path, O_RDONLY);
  if (!file)
    return errno == ENOENT || errno == ENOTDIR
               ? Contents{}
               : problem(fmt::format("cannot be read ({})", std::strerror(errno)));
  struct stat status {};
  if (::fstat(*file, &status) != 0 || !S_ISREG(status.st_mode)) return problem("is not a file");
  // Read to the end, whatever fstat says: it is replaced, not rewritten, but others may not know.
  std::string text;
  std::vector<char> buffer(std::size_t{64} << 10);
  while (true) {
    const ssize_t got = ::read(*file, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return problem(fmt::format("cannot be read ({})", std::strerror(errno)));
    if (got == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > PlanFile::kMostBytes) return problem("is too large");
  }
  return parse(text);
}

/// Keeps the newest. Linear searches: a full file is rare.
void make_room(json& records, const std::string& keep) {
  while (records.size() > PlanFile::kMostRecords) {
    auto oldest = records.end();
    for (auto it = records.begin(); it != records.end(); ++it)
      if (it.key() != keep && (oldest == records.end() ||
                               it->at("stored").get<double>() < oldest->at("stored").get<double>()))
        oldest = it;
    records.erase(oldest);
  }
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

/// False, with errno, when the folder or the disk does not let us.
bool replace(const fs::path& path, const std::string& text) {
  static std::atomic<unsigned> count{0};  // NOLINT: only makes names differ between threads
  const fs::path fresh = path.string() + fmt::format(".{}.{}", ::getpid(), ++count);
  Descriptor file(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file) return false;
  // No fsync: a file that a crash leaves empty is ignored and written again.
  if (write_all(*file, text) && file.close() && ::rename(fresh.c_str(), path.c_str()) == 0)
    return true;
  const int reason = errno;
  ::unlink(fresh.c_str());
  errno = reason;
  return false;
}

/// The system drops the lock when the descriptor closes, thus also when the process dies.
bool lock(int file) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;  // no locks here: the last one wins
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

fs::path PlanFile::from_environment(bool only_if_asked) {
  const auto variable = [](const char* name) -> std::string_view {
    const char* const value = std::getenv(name);
    return value ? value : "";
  };
  const std::string name = fmt::format("plans-{}.json", kFormat);
  const std::string_view asked = variable("PACKRNN_CACHE");
  if (asked == "off") return {};
  if (!asked.empty()) return fs::path(asked) / name;
  if (only_if_asked) return {};
  // The XDG rules: a relative path there is to be ignored.
  if (const fs::path cache = variable("XDG_CACHE_HOME"); cache.is_absolute())
    return cache / "packrnn" / name;
  if (const fs::path home = variable("HOME"); home.is_absolute())
    return home / ".cache" / "packrnn" / name;
  return {};
}

std::optional<PlanFile::Record> PlanFile::find(const std::string& key) const {
  note_.clear();
  if (path_.empty()) return {};
  const Contents contents = load(path_);
  if (!contents.problem.empty()) note_ = fmt::format("{} {}", path_.string(), contents.problem);
  const auto record = contents.records.find(key);
  if (record == contents.records.end()) return {};
  return record->at("values").get<Record>();
}

bool PlanFile::store(const std::string& key, const Record& record) {
  note_.clear();
  if (path_.empty()) return false;
  if (!std::all_of(record.begin(), record.end(),
                   [](const auto& item) { return std::isfinite(item.second); })) {
    note_ = fmt::format("{}: a number is not finite", key);
    return false;
  }
  std::error_code ignored;  // no folder: no lock file either, which is where we notice
  fs::create_directories(path_.parent_path(), ignored);
  const Descriptor gate(path_.string() + ".lock", O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!gate) return false;  // a read-only or missing home is nobody's mistake
  if (!lock(*gate)) {
    note_ = fmt::format("{}: somebody holds its lock", path_.string());
    return false;
  }
  Contents contents = load(path_);
  if (!contents.problem.empty())
    note_ = fmt::format("{} {} and was replaced", path_.string(), contents.problem);
  contents.records[key] = {{"values", record}, {"stored", seconds_since_epoch()}};
  make_room(contents.records, key);
  std::string text;
  try {
    text = json{{"packrnn_plans", kFormat}, {"records", std::move(contents.records)}}.dump(1);
  } catch (const json::exception&) {  // a key that is not UTF-8
    note_ = fmt::format("{}: the key is not text", path_.string());
    return false;
  }
  if (text.size() <= kMostBytes && replace(path_, text)) return true;
  if (text.size() > kMostBytes || (errno != EACCES && errno != EROFS))
    note_ = fmt::format("{} cannot be written ({})", path_.string(),
                        text.size() > kMostBytes ? "too large" : std::strerror(errno));
  return false;
}

}  // namespace packrnn::kernels::cuda
