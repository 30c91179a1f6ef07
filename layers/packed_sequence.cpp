#include "packrnn/layers/packed_sequence.hpp"

#include <utility>

#include "packrnn/runtime/expects.hpp"

namespace packrnn {

PackedSequence::PackedSequence(Tensor data, PackedLayoutPtr layout) {
  expects(layout != nullptr, "layout is null");
  expects(data.defined(), "data is not defined");
  expects(data.shape().rank() >= 1 && data.size(0) == layout->total(),
          "data has shape {}, expected {} packed rows", data.shape(), layout->total());
  data_ = std::move(data);
  layout_ = std::move(layout);
}

Tensor PackedSequence::take_data() && {
  layout_.reset();
  return std::exchange(data_, Tensor{});
}

}  // namespace packrnn
