#include "bench/race/peer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <packrnn/runtime/error.hpp>

#include "bench/text.hpp"

extern char** environ;

namespace packrnn::bench {
namespace {

constexpr int kPatienceMs = 120'000;
constexpr const char* kEnded = "it ended without an answer";

/// The environment with OpenMP told to use so many threads, each on a CPU of its own.
std::vector<std::string> environment_for(int threads) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry)
    if (!std::string_view(*entry).starts_with("OMP_")) all.emplace_back(*entry);
  all.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  all.emplace_back("OMP_PROC_BIND=true");
  all.emplace_back("OMP_PLACES=cores");
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

/// What follows `word` and a space or tab, if the line starts so.
bool take_word(std::string_view& line, std::string_view word) {
  if (!line.starts_with(word)) return false;
  line.remove_prefix(word.size());
  if (!line.empty()) line.remove_prefix(1);
  return true;
}

}  // namespace

Peer::Peer(std::vector<std::string> command, int threads) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    absent_ = std::strerror(errno);
    return;
  }
  command.push_back(std::to_string(threads));
  std::vector<std::string> variables = environment_for(threads);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int error = posix_spawnp(&process_, command[0].c_str(), &actions, nullptr,
                                 pointers(command).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    process_ = -1;
    absent_ = fmt::format("{}: {}", command[0], std::strerror(error));
    return;
  }
  try {
    const std::string line = answer();
    std::string_view rest = line;
    if (take_word(rest, "engine"))
      engine_ = rest;
    else
      absent_ = take_word(rest, "absent") ? rest : line;
  } catch (const FileError&) {
    // absent_ says it.
  }
}

Peer::~Peer() { stop(); }

void Peer::stop() noexcept {
  if (socket_ >= 0) close(socket_);  // what it reads ends, and so does it
  socket_ = -1;
  if (process_ < 0) return;
  for (int i = 0; i < 100; ++i) {
    if (waitpid(process_, nullptr, WNOHANG) != 0) {
      process_ = -1;
      return;
    }
    usleep(10'000);
  }
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = -1;
}

void Peer::lose(const std::string& why) {
  absent_ = why;
  if (process_ >= 0) kill(process_, SIGKILL);
  stop();
  throw FileError(why);
}

std::string Peer::answer() {
  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd wanted{socket_, POLLIN, 0};
    const int ready = poll(&wanted, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) lose("interrupted");
    if (ready <= 0) lose(fmt::format("no answer within {} s", kPatienceMs / 1000));
    std::array<char, 4096> part{};
    const ssize_t count = read(socket_, part.data(), part.size());
    if (count <= 0) lose(kEnded);
    pending_.append(part.data(), static_cast<std::size_t>(count));
  }
}

std::string Peer::ask(const std::string& line) {
  if (!absent_.empty()) throw FileError(absent_);
  const std::string text = line + "\n";
  if (send(socket_, text.data(), text.size(), MSG_NOSIGNAL) != std::ssize(text)) lose(kEnded);
  std::string result = answer();
  if (result.starts_with("failed")) throw FileError(result);
  return result;
}

std::vector<std::string> Peer::load(const std::string& file, const std::string& cell) {
  const std::string line = ask(fmt::format("load\t{}\t{}", file, cell));
  std::string_view rest = line;
  take_until(rest, '\t');
  std::vector<std::string> variants;
  while (!rest.empty()) variants.emplace_back(take_until(rest, '\t'));
  return variants;
}

Seconds Peer::run(const std::string& variant, int passes) {
  const std::string line = ask(fmt::format("run\t{}\t{}", variant, passes));
  std::string_view rest = line;
  take_until(rest, '\t');
  const auto wall = number<double>(take_until(rest, '\t')), cpu = number<double>(rest);
  if (!wall || !cpu) lose(fmt::format("it answered \"{}\" to run", line));
  return {*wall, *cpu};
}

void Peer::output(const std::string& variant, const std::string& file) {
  ask(fmt::format("output\t{}\t{}", variant, file));
}

std::int64_t Peer::memory(const std::string& variant) {
  try {
    const std::string line = ask(fmt::format("memory\t{}", variant));
    std::string_view rest = line;
    take_until(rest, '\t');
    return number<std::int64_t>(rest).value_or(0);
  } catch (const FileError&) {
    if (!absent_.empty()) throw;
    return 0;
  }
}

}  // namespace packrnn::bench
