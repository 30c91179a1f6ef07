// Another engine, in a process of its own: its threads, its memory and its crashes stay there. It
// answers lines; bench/peers/line_server.py says which.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace packrnn::bench {

struct Seconds {
  double wall = 0.0, cpu = 0.0;
};

class Peer {
 public:
  /// Starts `command` with the number of threads as its last argument, one OpenMP thread bound to
  /// each CPU. Never throws: see absent().
  Peer(std::vector<std::string> command, int threads);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  /// Name and version; empty if absent.
  const std::string& engine() const { return engine_; }
  /// Why it cannot take part; empty if it can.
  const std::string& absent() const { return absent_; }

  /// The commands. Each throws FileError saying what the engine answered, or
  /// that it died or has been silent for two minutes, after which it is absent.
  std::vector<std::string> load(const std::string& file, const std::string& cell);
  Seconds run(const std::string& variant, int passes);
  void output(const std::string& variant, const std::string& file);
  /// Bytes that a step of training adds at its peak; 0 if the engine does not say.
  std::int64_t memory(const std::string& variant);

 private:
  std::string ask(const std::string& line);
  std::string answer();
  [[noreturn]] void lose(const std::string& why);
  void stop() noexcept;

  std::string engine_, absent_, pending_;
  pid_t process_ = -1;
  int socket_ = -1;
};

}  // namespace packrnn::bench
