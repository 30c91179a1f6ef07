// What the library throws. Every type derives from Error, so one catch suffices; the subtypes say
// whose problem it is. Nothing here prints, exits or aborts.
#pragma once

#include <stdexcept>
#include <string>

namespace packrnn {

/// Base of everything packrnn throws on its own account.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller's mistake: a value, shape, dtype or length that the contract forbids. Thrown before
/// anything is changed; the message names the argument, its value and what was expected.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A legal request that this build, device or version cannot serve. Never replaced by a silent
/// slow path.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// Memory could not be had; the message states the size. Every object stays usable.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be opened, is damaged or lies about its contents. Names the file.
class FileError : public Error {
 public:
  using Error::Error;
};

/// The device or its driver failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace packrnn
