// Everything of packrnn in one include; each header can be included by itself.
#pragma once

#include "packrnn/layers/checkpoint.hpp"
#include "packrnn/layers/embedding.hpp"
#include "packrnn/layers/gru.hpp"
#include "packrnn/layers/import.hpp"
#include "packrnn/layers/initialize.hpp"
#include "packrnn/layers/linear.hpp"
#include "packrnn/layers/lstm.hpp"
#include "packrnn/layers/optimizers.hpp"
#include "packrnn/layers/packed_ops.hpp"
#include "packrnn/layers/packing.hpp"
#include "packrnn/layers/rnn.hpp"
#include "packrnn/layers/safetensors.hpp"
#include "packrnn/layers/schedules.hpp"
#include "packrnn/runtime/dlpack.hpp"
#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/graph.hpp"
