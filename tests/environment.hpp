// Variables of the environment, changed for as long as a test wants.
#pragma once

#include <cstdlib>
#include <string>

namespace packrnn::tests {

/// Sets a variable, or removes it (null), until it dies; then it is what it was.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* const old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    set(value);
  }
  ~Environment() { set(had_ ? old_.c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr)
      ::setenv(name_, value, 1);
    else
      ::unsetenv(name_);
  }

  const char* name_;
  bool had_ = false;
  std::string old_;
};

}  // namespace packrnn::tests
