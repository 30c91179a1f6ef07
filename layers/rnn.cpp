#include "packrnn/layers/rnn.hpp"

namespace packrnn {

Rnn::Rnn(const RnnOptions& o)
    : Recurrent({.cell = o.nonlinearity == Nonlinearity::tanh ? kernels::Cell::rnn_tanh
                                                              : kernels::Cell::rnn_relu,
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
