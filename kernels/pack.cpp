#include "packrnn/kernels/pack.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "packrnn/kernels/check.hpp"
#include "packrnn/kernels/cpu/pack.hpp"
#include "packrnn/kernels/cpu/parallel_for.hpp"
#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/cuda/row.hpp"
#include "packrnn/kernels/fill_value.hpp"

namespace packrnn::kernels {
namespace {

std::int64_t row_bytes(const Shape& row, Dtype dtype) {
  return row.elements() * static_cast<std::int64_t>(size_of(dtype));
}

const std::byte* bytes(const TensorView& tensor) {
  return static_cast<const std::byte*>(tensor.raw());
}
std::byte* bytes(const TensorSpan& tensor) { return static_cast<std::byte*>(tensor.raw()); }

// What must hold before a tensor's shape can be taken apart.
void check_rank(const Context& context, const char* name, const TensorView& tensor, int at_least) {
  expects(tensor.defined(), "{} is not defined", name);
  check_place(name, tensor, context.device());
  expects(tensor.shape().rank() >= at_least, "{} has shape {}, expected {} or more dimensions",
          name, tensor.shape(), at_least);
}

// Checks padded data against `count` sequences, the longest of which has `longest` elements.
PaddedGrid grid_of(const TensorView& padded, bool batch_first, std::int64_t count,
                   std::int64_t longest) {
  const PaddedGrid grid{.steps = padded.size(batch_first ? 1 : 0),
                        .batch = padded.size(batch_first ? 0 : 1),
                        .batch_first = batch_first};
  expects(grid.batch == count, "padded has shape {}: a batch of {}, expected {}", padded.shape(),
          grid.batch, count);
  expects(grid.steps >= longest, "padded has shape {}: {} steps, but the longest sequence has {}",
          padded.shape(), grid.steps, longest);
  return grid;
}

void check_sequences(const Context& context, std::span<const TensorView> sequences,
                     const Shape& row, Dtype dtype) {
  for (const TensorView& sequence : sequences) {
    check_rank(context, "a sequence", sequence, 1);
    check("a sequence", sequence, row.prepend(sequence.size(0)), dtype, context.device());
  }
}

void check_lengths(std::span<const TensorView> sequences, const PackedLayout& layout) {
  expects(static_cast<std::int64_t>(sequences.size()) == layout.batch(),
          "{} sequences for a layout of {}", sequences.size(), layout.batch());
  for (std::size_t n = 0; n < sequences.size(); ++n)
    expects(sequences[n].size(0) == layout.lengths()[n],
            "sequence {} has {} elements, its length in the layout is {}", n, sequences[n].size(0),
            layout.lengths()[n]);
}

template <class Byte>
cpu::Sequences<Byte> sequences_of(std::span<Byte*> base, Byte* data, const PaddedGrid& grid,
                                  std::int64_t row) {
  for (std::size_t n = 0; n < base.size(); ++n)
    base[n] = data + grid.row(static_cast<std::int64_t>(n), 0) * row;
  return {.base = base, .step = grid.step_stride() * row, .time_major = !grid.batch_first};
}

cpu::SequencesIn sequences_of(std::span<const std::byte*> base,
                              std::span<const TensorView> sequences, std::int64_t row) {
  std::ranges::transform(sequences, base.begin(), [](const TensorView& s) { return bytes(s); });
  return {.base = base, .step = row, .time_major = false};
}

bool on_gpu(const Context& context) { return context.device().type == DeviceType::cuda; }

cuda::Cells cells_of(const PaddedGrid& grid) { return {grid.steps, grid.batch, grid.batch_first}; }

// Sequences of one padded batch on the GPU.
cuda::Sequences on_gpu(const TensorView& padded, const PaddedGrid& grid, std::int64_t row) {
  return {.table = nullptr,
          .base = const_cast<std::byte*>(bytes(padded)),
          .stride = grid.sequence_stride() * row,
          .step = grid.step_stride() * row};
}

// A copy of `values`, 8 bytes each, in the GPU's memory.
template <class T>
T* on_gpu(Context& context, Workspace::Scope& scope, const std::vector<T>& values) {
  static_assert(sizeof(T) == 8);
  const auto count = static_cast<std::int64_t>(values.size());
  T* const table = scope.take<T>(count).data();
  context.copy(TensorView(values.data(), {count}, Dtype::i64),
               TensorSpan(table, {count}, Dtype::i64, context.device()));
  return table;
}

// Sequences that lie apart on the GPU, and what their addresses are multiples of.
struct Scattered {
  cuda::Sequences sequences;
  std::int64_t addresses = 0;
};
Scattered on_gpu(Context& context, Workspace::Scope& scope, std::span<const TensorView> sequences,
                 std::int64_t row) {
  Scattered result;
  std::vector<std::byte*> table;
  table.reserve(sequences.size());
  for (const TensorView& sequence : sequences) {
    table.push_back(const_cast<std::byte*>(bytes(sequence)));
    result.addresses |= cuda::address(sequence.raw());
  }
  result.sequences.table = on_gpu(context, scope, table);
  result.sequences.step = row;
  return result;
}

// The first index that is neither a row of the table nor (where allowed) -1, as its position.
template <class Index>
void check_rows(std::span<const Index> indices, const Shape& shape, std::int64_t rows,
                bool allow_absent) {
  const auto lowest = static_cast<Index>(allow_absent ? -1 : 0);
  const auto bad = std::ranges::find_if(
      indices, [&](Index i) { return i < lowest || static_cast<std::int64_t>(i) >= rows; });
  if (bad == indices.end()) return;
  std::array<std::int64_t, Shape::kMaxRank> position{};
  std::int64_t rest = bad - indices.begin();
  for (int d = shape.rank() - 1; d >= 0; --d) {
    position[static_cast<std::size_t>(d)] = rest % shape[d];
    rest /= shape[d];
  }
  const auto named = std::span(position).first(static_cast<std::size_t>(shape.rank()));
  throw InvalidArgument(
      fmt::format("index [{}] is {}, expected 0 to {}", fmt::join(named, ", "), *bad, rows - 1));
}

}  // namespace

void pack_padded(Context& context, const TensorView& padded, const PackedLayout& layout,
                 bool batch_first, const TensorSpan& packed) {
  check_rank(context, "padded", padded, 2);
  const PaddedGrid grid = grid_of(padded, batch_first, layout.batch(), layout.steps());
  const Shape row_shape = padded.shape().from(2);
  check("packed", packed, row_shape.prepend(layout.total()), padded.dtype(), context.device());
  if (packed.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, padded.dtype());
  if (on_gpu(context))
    return cuda::pack_rows(
        context.stream(), layout.on(context), on_gpu(padded, grid, row),
        cuda::row_of(row, cuda::address(padded.raw()) | cuda::address(packed.raw())), packed.raw());
  Workspace::Scope scope(context.workspace());
  const auto base = scope.take<const std::byte*>(grid.batch);
  cpu::pack(context.pool(), sequences_of(base, bytes(padded), grid, row), layout, row,
            bytes(packed));
}

void pack_sequences(Context& context, std::span<const TensorView> sequences,
                    const PackedLayout& layout, const TensorSpan& packed) {
  check_rank(context, "packed", packed, 1);
  const Shape row_shape = packed.shape().from(1);
  check_sequences(context, sequences, row_shape, packed.dtype());
  check_lengths(sequences, layout);
  check("packed", packed, row_shape.prepend(layout.total()), packed.dtype(), context.device());
  if (packed.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, packed.dtype());
  Workspace::Scope scope(context.workspace());
  if (on_gpu(context)) {
    const Scattered source = on_gpu(context, scope, sequences, row);
    return cuda::pack_rows(context.stream(), layout.on(context), source.sequences,
                           cuda::row_of(row, source.addresses | cuda::address(packed.raw())),
                           packed.raw());
  }
  const auto base = scope.take<const std::byte*>(layout.batch());
  cpu::pack(context.pool(), sequences_of(base, sequences, row), layout, row, bytes(packed));
}

void unpack_padded(Context& context, const TensorView& packed, const PackedLayout& layout,
                   bool batch_first, double padding_value, const TensorSpan& padded) {
  check_rank(context, "packed", packed, 1);
  check_rank(context, "padded", padded, 2);
  const Shape row_shape = packed.shape().from(1);
  check("packed", packed, row_shape.prepend(layout.total()), packed.dtype(), context.device());
  const PaddedGrid grid = grid_of(padded, batch_first, layout.batch(), layout.steps());
  check("padded", padded, grid.shape(row_shape), packed.dtype(), context.device());
  const FillValue value = fill_value(padding_value, packed.dtype(), "padding_value");
  if (padded.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, packed.dtype());
  if (on_gpu(context))
    return cuda::unpack_cells(
        context.stream(), layout.on(context), packed.raw(),
        cuda::row_of(row, cuda::address(padded.raw()) | cuda::address(packed.raw()), value),
        cells_of(grid), padded.raw());
  Workspace::Scope scope(context.workspace());
  const auto base = scope.take<std::byte*>(grid.batch);
  cpu::unpack(context.pool(), bytes(packed), layout, row,
              sequences_of(base, bytes(padded), grid, row), grid.steps, value);
}

void unpack_sequences(Context& context, const TensorView& packed, const PackedLayout& layout,
                      std::span<const TensorSpan> sequences) {
  check_rank(context, "packed", packed, 1);
  const Shape row_shape = packed.shape().from(1);
  check("packed", packed, row_shape.prepend(layout.total()), packed.dtype(), context.device());
  const std::vector<TensorView> views(sequences.begin(), sequences.end());
  check_sequences(context, views, row_shape, packed.dtype());
  check_lengths(views, layout);
  if (packed.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, packed.dtype());
  Workspace::Scope scope(context.workspace());
  if (on_gpu(context)) {
    const Scattered target = on_gpu(context, scope, views, row);
    return cuda::unpack_rows(context.stream(), layout.on(context), packed.raw(),
                             cuda::row_of(row, target.addresses | cuda::address(packed.raw())),
                             target.sequences);
  }
  const auto base = scope.take<std::byte*>(layout.batch());
  std::ranges::transform(sequences, base.begin(), [](const TensorSpan& s) { return bytes(s); });
  cpu::unpack(context.pool(), bytes(packed), layout, row,
              {.base = base, .step = row, .time_major = false}, 0, FillValue{});
}

void pad_sequences(Context& context, std::span<const TensorView> sequences, bool batch_first,
                   double padding_value, const TensorSpan& padded) {
  check_rank(context, "padded", padded, 2);
  const Shape row_shape = padded.shape().from(2);
  check_sequences(context, sequences, row_shape, padded.dtype());
  const auto count = static_cast<std::int64_t>(sequences.size());
  std::int64_t longest = 0;
  for (const TensorView& sequence : sequences) longest = std::max(longest, sequence.size(0));
  const PaddedGrid grid = grid_of(padded, batch_first, count, longest);
  const FillValue value = fill_value(padding_value, padded.dtype(), "padding_value");
  if (padded.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, padded.dtype());
  Workspace::Scope scope(context.workspace());
  if (on_gpu(context)) {
    const Scattered source = on_gpu(context, scope, sequences, row);
    std::vector<std::int64_t> lengths;
    for (const TensorView& sequence : sequences) lengths.push_back(sequence.size(0));
    return cuda::pad_cells(context.stream(), source.sequences, on_gpu(context, scope, lengths),
                           cuda::row_of(row, source.addresses | cuda::address(padded.raw()), value),
                           cells_of(grid), padded.raw());
  }
  const auto lengths = scope.take<std::int64_t>(count);
  std::ranges::transform(sequences, lengths.begin(), [](const TensorView& s) { return s.size(0); });
  const auto from = scope.take<const std::byte*>(count);
  const auto to = scope.take<std::byte*>(count);
  cpu::pad(context.pool(), sequences_of(from, sequences, row), lengths, row,
           sequences_of(to, bytes(padded), grid, row), grid.steps, value);
}

void gather_rows(Context& context, const TensorView& source, const TensorView& indices,
                 const TensorSpan& target, std::optional<double> absent) {
  check_rank(context, "source", source, 1);
  check_rank(context, "indices", indices, 0);
  const Shape row_shape = source.shape().from(1);
  Shape expected = row_shape;
  for (int d = indices.shape().rank() - 1; d >= 0; --d)
    expected = expected.prepend(indices.size(d));
  check("target", target, expected, source.dtype(), context.device());
  expects(indices.dtype() == Dtype::i32 || indices.dtype() == Dtype::i64,
          "indices have dtype {}, expected i32 or i64", indices.dtype());
  FillValue value;
  if (absent) value = fill_value(*absent, source.dtype(), "absent");

  const std::int64_t row = row_bytes(row_shape, source.dtype());
  if (on_gpu(context))
    return cuda::gather_rows(
        context.stream(), source.raw(), source.size(0), indices.raw(),
        indices.dtype() == Dtype::i64, indices.elements(), absent.has_value(),
        cuda::row_of(row, cuda::address(source.raw()) | cuda::address(target.raw()), value),
        target.raw(), context.fault());
  const auto run = [&]<class Index>(std::span<const Index> values) {
    check_rows(values, indices.shape(), source.size(0), absent.has_value());
    if (target.elements() == 0) return;
    cpu::gather(context.pool(), bytes(source), values, row, absent ? &value : nullptr,
                bytes(target));
  };
  if (indices.dtype() == Dtype::i32)
    run(indices.values<std::int32_t>());
  else
    run(indices.values<std::int64_t>());
}

void pick_elements(Context& context, const TensorView& packed, const PackedLayout& layout,
                   bool last, double empty_value, const TensorSpan& target) {
  check_rank(context, "packed", packed, 1);
  const Shape row_shape = packed.shape().from(1);
  check("packed", packed, row_shape.prepend(layout.total()), packed.dtype(), context.device());
  check("target", target, row_shape.prepend(layout.batch()), packed.dtype(), context.device());
  const FillValue value = fill_value(empty_value, packed.dtype(), "empty_value");
  if (target.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, packed.dtype());
  if (on_gpu(context))
    return cuda::pick_rows(
        context.stream(), layout.on(context), packed.raw(), last,
        cuda::row_of(row, cuda::address(packed.raw()) | cuda::address(target.raw()), value),
        target.raw());
  Workspace::Scope scope(context.workspace());
  const auto rows = scope.take<std::int64_t>(layout.batch());
  std::int64_t n = 0;
  for (const std::int64_t length : layout.lengths()) {
    rows[static_cast<std::size_t>(n)] = length == 0 ? -1 : layout.row(n, last ? length - 1 : 0);
    ++n;
  }
  cpu::gather(context.pool(), bytes(packed), std::span<const std::int64_t>(rows), row, &value,
              bytes(target));
}

void put_elements(Context& context, const TensorView& rows, const PackedLayout& layout, bool last,
                  const TensorSpan& packed) {
  check_rank(context, "rows", rows, 1);
  const Shape row_shape = rows.shape().from(1);
  check("rows", rows, row_shape.prepend(layout.batch()), rows.dtype(), context.device());
  check("packed", packed, row_shape.prepend(layout.total()), rows.dtype(), context.device());
  if (packed.elements() == 0) return;

  const std::int64_t row = row_bytes(row_shape, packed.dtype());
  if (on_gpu(context))
    return cuda::put_rows(
        context.stream(), layout.on(context), rows.raw(), last,
        cuda::row_of(row, cuda::address(rows.raw()) | cuda::address(packed.raw())), packed.raw());
  std::memset(packed.raw(), 0, packed.bytes());
  for (std::int64_t n = 0; n < layout.batch(); ++n)
    if (const std::int64_t length = layout.lengths()[static_cast<std::size_t>(n)]; length > 0)
      std::memcpy(bytes(packed) + layout.row(n, last ? length - 1 : 0) * row, bytes(rows) + n * row,
                  static_cast<std::size_t>(row));
}

void copy_columns(Context& context, const TensorView& source, std::int64_t from,
                  const TensorSpan& target, std::int64_t to, std::int64_t width) {
  check_rank(context, "source", source, 1);
  check_rank(context, "target", target, 1);
  const std::int64_t f = source.size(-1), g = target.size(-1);
  expects(from >= 0 && width >= 0 && from <= f - width && to >= 0 && to <= g - width,
          "columns [{}, {}) of {} to [{}, {}) of {}", from, from + width, source.shape(), to,
          to + width, target.shape());
  if (width == 0) return;
  const std::int64_t rows = source.elements() / f;
  expects(target.dtype() == source.dtype() && target.elements() == rows * g,
          "target {} {} does not have the rows of source {} {}", target.dtype(), target.shape(),
          source.dtype(), source.shape());

  const auto size = static_cast<std::int64_t>(size_of(source.dtype()));
  if (on_gpu(context)) {
    const std::byte* const first = bytes(source) + from * size;
    std::byte* const to_first = bytes(target) + to * size;
    return cuda::spread_rows(context.stream(), first, f * size, rows,
                             cuda::row_of(width * size, cuda::address(first) | f * size |
                                                            cuda::address(to_first) | g * size),
                             to_first, g * size);
  }
  cpu::parallel_for(context.pool(), rows, width * size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      std::memcpy(bytes(target) + (r * g + to) * size, bytes(source) + (r * f + from) * size,
                  static_cast<std::size_t>(width * size));
  });
}

void concat_features(Context& context, std::span<const TensorView> inputs,
                     const TensorSpan& target) {
  expects(!inputs.empty(), "inputs is empty, expected one tensor or more");
  check_rank(context, "target", target, 1);
  const int last = target.shape().rank() - 1;
  const auto rows_of = [&](const TensorView& t) { return t.shape().extents().first(last); };
  std::int64_t features = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& input = inputs[i];
    check_rank(context, "an input", input, last + 1);
    expects(input.shape().rank() == last + 1 && std::ranges::equal(rows_of(input), rows_of(target)),
            "input {} has shape {}, which cannot be a part of {}", i, input.shape(),
            target.shape());
    expects(input.dtype() == target.dtype(), "input {} has dtype {}, the target {}", i,
            input.dtype(), target.dtype());
    features += input.size(last);
  }
  expects(features == target.size(last), "inputs have {} features together, target {} has {}",
          features, target.shape(), target.size(last));
  if (target.elements() == 0) return;

  const auto element = static_cast<std::int64_t>(size_of(target.dtype()));
  const std::int64_t rows = target.elements() / features;
  std::byte* out = bytes(target);
  for (const TensorView& input : inputs) {
    const std::int64_t width = input.size(last) * element;
    const std::int64_t stride = features * element;
    if (width > 0 && on_gpu(context))
      cuda::spread_rows(
          context.stream(), input.raw(), width, rows,
          cuda::row_of(width, cuda::address(input.raw()) | cuda::address(out) | stride), out,
          stride);
    else if (width > 0)
      cpu::spread(context.pool(), bytes(input), rows, width, out, stride);
    out += width;
  }
}

}  // namespace packrnn::kernels
