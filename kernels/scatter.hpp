// Sums of rows by index: the backward of gather_rows() of pack.hpp.
#pragma once

#include <cstdint>

#include "packrnn/runtime/context.hpp"
#include "packrnn/runtime/tensor.hpp"

namespace packrnn::kernels {

/// Positions of one index whose rows are summed one after the other, from zero and in double.
inline constexpr std::int64_t kScatterPart = 256;

/// Adds to target [R, row] each of rows [..., row] at its own of indices [...] (i32 or i64); a row
/// of index `skip` is left out and not read. f32 and f64; on a GPU also 16-bit rows, whose target
/// may be f32. May not overlap. The rows of one index are summed in their order, in parts of
/// kScatterPart that are added in theirs, in double, so that neither the device nor the number of
/// threads nor other indices change a bit. Throws InvalidArgument, before anything is written, for
/// an index that is neither `skip` nor in 0 .. R - 1, naming its position in row-major order and
/// its value; on a GPU its row is left out and the next synchronize() or to_host() throws.
void scatter_add_rows(Context& context, const TensorView& rows, const TensorView& indices,
                      const TensorSpan& target, std::int64_t skip = -1);

}  // namespace packrnn::kernels
