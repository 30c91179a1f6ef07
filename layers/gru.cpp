#include "packrnn/layers/gru.hpp"

namespace packrnn {

Gru::Gru(const GruOptions& o)
    : Recurrent({.cell = o.reset_after ? kernels::Cell::gru : kernels::Cell::gru_reset_before,
                 .input_size = o.input_size,
                 .hidden_size = o.hidden_size,
                 .num_layers = o.num_layers,
                 .bias = o.bias,
                 .batch_first = o.batch_first,
                 .bidirectional = o.bidirectional,
                 .dropout = o.dropout,
                 .dtype = o.dtype,
                 .weight_storage = o.weight_storage,
                 .seed = o.seed}) {}

}  // namespace packrnn
