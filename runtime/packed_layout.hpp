// Where the rows of a packed batch lie. Sequences are sorted by decreasing length (stably) and
// stored time-major without padding: step t holds the t-th element of the batch_sizes[t] sequences
// longer than t, in sorted order.
//
//   lengths 2 4 1            sorted   1 0 2  (caller's index of each sorted sequence)
//   seq 0  a0 a1             packed   b0 a0 c0 | b1 a1 | b2 | b3
//   seq 1  b0 b1 b2 b3       sizes    3          2       1    1
//   seq 2  c0                offsets  0          3       5    6    7
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "packrnn/runtime/tensor.hpp"

namespace packrnn {

class Context;
struct DeviceLayout;

/// Lengths of N sequences as a caller may hold them; copied, so the caller's memory is free at
/// once. From a tensor: [N] on the host, i64 or i32, or f32/f64 with integral values (a NaN, Inf or
/// fraction is refused with its value and position). Negative values are refused by every maker.
/// Lengths that live on a device stay there: kernels::make_layout().
class Lengths {
 public:
  Lengths(std::initializer_list<std::int64_t> values);
  Lengths(std::vector<std::int64_t> values);                 // NOLINT(google-explicit-constructor)
  Lengths(std::span<const std::int64_t> values);             // NOLINT(google-explicit-constructor)
  Lengths(const std::vector<int>& values);                   // NOLINT(google-explicit-constructor)
  Lengths(const TensorView& values);                         // NOLINT(google-explicit-constructor)
  Lengths(const Tensor& values) : Lengths(values.view()) {}  // NOLINT(google-explicit-constructor)

  std::span<const std::int64_t> values() const noexcept { return values_; }
  std::int64_t count() const noexcept { return static_cast<std::int64_t>(values_.size()); }

 private:
  std::vector<std::int64_t> values_;
};

struct LayoutOptions {
  /// Refuse lengths that are not in decreasing order (then sorted order is the caller's).
  bool enforce_sorted = false;
  /// T of the padded batch this came from, which un-padding restores; -1: the longest length.
  /// Less than the longest length is refused.
  std::int64_t padded_length = -1;
  /// N names for the sequences, to which dropout masks are tied; empty: 0 .. N - 1.
  std::vector<std::int64_t> sequence_ids = {};
};

class PackedLayout;
using PackedLayoutPtr = std::shared_ptr<const PackedLayout>;

/// Immutable and shared: built once per batch, used by every operation on it and from any thread.
///
/// A layout made from lengths on a device (kernels::make_layout) is not known(): the host has not
/// seen them and never waits for them. It knows N and how many steps and rows there is room for;
/// packed data has total() rows of which those behind the real ones are zero. What needs the
/// lengths themselves throws Unsupported.
class PackedLayout {
 public:
  /// Largest steps() and batch(). Each step costs 16 bytes here, so one wrong length could
  /// otherwise ask for all memory; and below this no sum of lengths can overflow.
  static constexpr std::int64_t kMaxExtent = std::int64_t{1} << 28;

  /// Throws InvalidArgument naming the first offender, OutOfMemory; both before anything is kept.
  static PackedLayoutPtr make(const Lengths& lengths, LayoutOptions options = {});

  /// From what other frameworks store: non-increasing positive batch_sizes [T] and, optionally, the
  /// caller's index of each sorted sequence (a permutation of 0 .. N - 1; empty: identity). Every
  /// rule is checked; `rows`, the number of packed rows, must be their sum. No zero lengths here.
  static PackedLayoutPtr from_batch_sizes(std::span<const std::int64_t> batch_sizes,
                                          std::int64_t rows,
                                          std::span<const std::int64_t> sorted_indices = {});

  /// For kernels::make_layout() only: a layout that is not known(), whose tables lie in `memory` of
  /// the context's device and are written by work that is on its stream already.
  static PackedLayoutPtr of_tables(const Context& context, Tensor memory,
                                   const DeviceLayout& tables);

  ~PackedLayout();

  /// Whether the host knows the lengths.
  bool known() const noexcept { return known_; }
  /// N, the number of sequences, zero-length ones included.
  std::int64_t batch() const noexcept { return batch_; }
  /// Longest length, 0 when all are empty. Not known(): the most there is room for.
  std::int64_t steps() const noexcept { return steps_; }
  /// Rows of packed data: the sum of lengths. Not known(): the most there is room for.
  std::int64_t total() const noexcept { return total_; }
  /// T of the padded batch this came from.
  std::int64_t padded_length() const noexcept { return padded_length_; }
  /// True when the caller's order is known to be the sorted order.
  bool sorted() const noexcept { return sorted_; }

  /// [N], caller's order. This and the following: Unsupported unless known().
  std::span<const std::int64_t> lengths() const { return known("lengths", lengths_); }
  /// [steps()], non-increasing, each >= 1.
  std::span<const std::int64_t> batch_sizes() const { return known("batch sizes", batch_sizes_); }
  /// [steps() + 1]: first packed row of each step; the last entry is total().
  std::span<const std::int64_t> offsets() const { return known("offsets", offsets_); }
  /// [N]: the caller's index of the k-th longest sequence.
  std::span<const std::int64_t> sorted_indices() const {
    return known("sorted order", sorted_indices_);
  }
  /// [N]: place in sorted order of the caller's sequence; inverse of sorted_indices().
  std::span<const std::int64_t> unsorted_indices() const {
    return known("sorted order", unsorted_indices_);
  }
  /// [N], caller's order.
  std::span<const std::int64_t> sequence_ids() const {
    return known("sequence ids", sequence_ids_);
  }

  /// The tables in the memory of the context's GPU, for kernels; private to the library. Uploaded
  /// the first time, in the order of the context's stream: each context has its own, so contexts
  /// need not wait for each other. A layout that is not known() belongs to the context that made
  /// it: InvalidArgument on others. The host does not wait. Valid as long as the layout.
  const DeviceLayout& on(Context& context) const;

  /// Packed row of element `step` of the caller's sequence; known(), no checks.
  std::int64_t row(std::int64_t sequence, std::int64_t step) const noexcept {
    return offsets_[static_cast<std::size_t>(step)] +
           unsorted_indices_[static_cast<std::size_t>(sequence)];
  }

 private:
  struct OnDevice;
  struct Devices;

  PackedLayout();
  std::span<const std::int64_t> known(const char* what,
                                      const std::vector<std::int64_t>& values) const {
    if (!known_) throw_unknown(what);
    return values;
  }
  [[noreturn]] static void throw_unknown(const char* what);
  void set_sizes();

  std::vector<std::int64_t> lengths_, batch_sizes_, offsets_, sorted_indices_, unsorted_indices_,
      sequence_ids_;
  std::int64_t batch_ = 0, steps_ = 0, total_ = 0, padded_length_ = 0;
  bool known_ = true, sorted_ = true;
  std::unique_ptr<Devices> devices_;
};

}  // namespace packrnn
