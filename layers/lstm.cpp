#include "packrnn/layers/lstm.hpp"

namespace packrnn {

Lstm::Lstm(const LstmOptions& o)
    : Recurrent({.cell = kernels::Cell::lstm,
                 .input_size = o.input_size,
                 .hidden_size = o.hidden_size,
                 .num_layers = o.num_layers,
                 .proj_size = o.proj_size,
                 .bias = o.bias,
                 .batch_first = o.batch_first,
                 .bidirectional = o.bidirectional,
                 .dropout = o.dropout,
                 .dtype = o.dtype,
                 .weight_storage = o.weight_storage,
                 .seed = o.seed}) {}

}  // namespace packrnn
