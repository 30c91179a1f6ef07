#include "bench/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace packrnn::bench {

Progress::Progress(int jobs, std::string verb)
    : jobs_(jobs), verb_(std::move(verb)), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::start(const std::string& name) {
  name_ = name;
  ++started_;
  if (terminal_)
    draw(0.0, {});
  else
    fmt::print(stderr, "{} {} ({} of {})\n", verb_, name_, started_, jobs_);
}

void Progress::update(double part, std::string_view note) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < kInterval) return;
  last_ = now;
  draw(part, note);
}

void Progress::draw(double part, std::string_view note) {
  constexpr int kWidth = 40;
  const double done = (started_ - 1 + std::clamp(part, 0.0, 1.0)) / jobs_;
  const int filled = static_cast<int>(done * kWidth);
  fmt::print(stderr, "\r[{:#<{}}{:.<{}}] {:3.0f} % {}{}{}\x1b[K", "", filled, "", kWidth - filled,
             100.0 * done, name_, note.empty() ? "" : ", ", note);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace packrnn::bench
