// A library with the calls of cuDNN that bench/peers/cudnn.cpp makes, for the simulated device,
// whose memory is the host's: one layer, one direction, f32, by the scalar reference. It refuses
// what the real one is known to refuse, and a few things more, so that the benchmark's way with
// cuDNN can be run from end to end without a GPU. Built where cudnn.h is, and loaded through
// PACKRNN_CUDNN_LIBRARY.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "packrnn/runtime/gpu.hpp"
#include "tests/reference/rnn.hpp"

namespace reference = packrnn::reference;

// cuDNN's header leaves these to us.
struct cudnnContext {
  void* stream = nullptr;
};
struct cudnnDropoutStruct {};
struct cudnnTensorStruct {
  std::vector<int> extents;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
};
struct cudnnRNNStruct {
  cudnnRNNAlgo_t algorithm = CUDNN_RNN_ALGO_STANDARD;
  reference::Config config;
  bool padded = false, built = false;
};
struct cudnnRNNDataStruct {
  cudnnRNNDataLayout_t layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
  int steps = 0, width = 0;
  std::vector<int> lengths;

  /// First value of a sequence's step.
  std::size_t at(int sequence, int step) const {
    std::size_t row = 0;
    if (layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED) {
      for (int t = 0; t < step; ++t)
        for (const int length : lengths) row += length > t ? 1 : 0;
      row += static_cast<std::size_t>(sequence);
    } else if (layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED) {
      row = static_cast<std::size_t>(step) * lengths.size() + static_cast<std::size_t>(sequence);
    } else {
      row = static_cast<std::size_t>(sequence) * static_cast<std::size_t>(steps) +
            static_cast<std::size_t>(step);
    }
    return row * static_cast<std::size_t>(width);
  }
};

namespace {

std::string last_error;

cudnnStatus_t refuse(cudnnStatus_t status, const char* why) {
  last_error = why;
  return status;
}

/// Where a gate's matrix and bias lie: all matrices, then all biases, with a gap between them.
struct Place {
  std::size_t matrix, bias, rows, columns;
};

Place place_of(const reference::Config& config, int id) {
  const auto gates = static_cast<std::size_t>(config.gates()),
             hidden = static_cast<std::size_t>(config.hidden_size),
             input = static_cast<std::size_t>(config.input_size);
  const auto gate = static_cast<std::size_t>(id);
  constexpr std::size_t kGap = 3;
  const std::size_t inputs = std::min(gate, gates), recurrents = gate - inputs;
  return {inputs * hidden * input + recurrents * hidden * hidden,
          gates * hidden * (input + hidden) + kGap + gate * hidden, hidden,
          gate < gates ? input : hidden};
}

std::vector<reference::Parameter> parameters_of(const reference::Config& config,
                                                const float* space) {
  std::vector<reference::Parameter> parameters = reference::parameters(config);
  const int gates = static_cast<int>(config.gates());
  for (int id = 0; id < 2 * gates; ++id) {
    const Place place = place_of(config, id);
    const auto gate = static_cast<std::size_t>(id % gates);
    const std::size_t kind = id < gates ? 0 : 1;  // weight_ih, weight_hh, bias_ih, bias_hh
    std::copy_n(space + place.matrix, place.rows * place.columns,
                parameters[kind].value.begin() +
                    static_cast<std::ptrdiff_t>(gate * place.rows * place.columns));
    std::copy_n(
        space + place.bias, place.rows,
        parameters[kind + 2].value.begin() + static_cast<std::ptrdiff_t>(gate * place.rows));
  }
  return parameters;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status == CUDNN_STATUS_BAD_PARAM   ? "CUDNN_STATUS_BAD_PARAM"
                                              : "CUDNN_STATUS_SUCCESS";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  std::snprintf(message, size, "%s", last_error.c_str());
  last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

#define PACKRNN_FAKE_DESCRIPTOR(Name, Type)                   \
  cudnnStatus_t cudnnCreate##Name##Descriptor(Type* result) { \
    *result = new std::remove_pointer_t<Type>;                \
    return CUDNN_STATUS_SUCCESS;                              \
  }                                                           \
  cudnnStatus_t cudnnDestroy##Name##Descriptor(Type value) {  \
    delete value;                                             \
    return CUDNN_STATUS_SUCCESS;                              \
  }
PACKRNN_FAKE_DESCRIPTOR(Dropout, cudnnDropoutDescriptor_t)
PACKRNN_FAKE_DESCRIPTOR(Tensor, cudnnTensorDescriptor_t)
PACKRNN_FAKE_DESCRIPTOR(RNN, cudnnRNNDescriptor_t)
PACKRNN_FAKE_DESCRIPTOR(RNNData, cudnnRNNDataDescriptor_t)
#undef PACKRNN_FAKE_DESCRIPTOR

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float dropout,
                                        void*, size_t, unsigned long long) {
  return dropout == 0.0F ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type,
                                         int rank, const int extents[], const int[]) {
  tensor->extents.assign(extents, extents + rank);
  tensor->type = type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int most,
                                         cudnnDataType_t* type, int* rank, int extents[],
                                         int strides[]) {
  *rank = std::min(most, static_cast<int>(tensor->extents.size()));
  *type = tensor->type;
  std::copy_n(tensor->extents.begin(), *rank, extents);
  std::fill_n(strides, *rank, 1);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                                       cudnnDirectionMode_t direction, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t,
                                       int32_t input, int32_t hidden, int32_t projection,
                                       int32_t layers, cudnnDropoutDescriptor_t, uint32_t flags) {
  if (bias != CUDNN_RNN_DOUBLE_BIAS || direction != CUDNN_UNIDIRECTIONAL || layers != 1 ||
      projection != hidden)
    return refuse(CUDNN_STATUS_BAD_PARAM, "the fake knows one plain layer");
  if (type != CUDNN_DATA_FLOAT) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the fake knows f32");
  if (algorithm == CUDNN_RNN_ALGO_PERSIST_STATIC)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the fake has no static persistent kernel");
  rnn->algorithm = algorithm;
  rnn->config = {};
  rnn->config.cell = cell == CUDNN_LSTM  ? reference::Cell::lstm
                     : cell == CUDNN_GRU ? reference::Cell::gru
                                         : reference::Cell::rnn_tanh;
  rnn->config.input_size = input;
  rnn->config.hidden_size = hidden;
  rnn->padded = (flags & CUDNN_RNN_PADDED_IO_ENABLED) != 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBuildRNNDynamic(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int) {
  rnn->built = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t,
                                        cudnnRNNDataLayout_t layout, int steps, int batch,
                                        int width, const int lengths[], void*) {
  *data = {layout, steps, width, {lengths, lengths + batch}};
  if (layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED) return CUDNN_STATUS_SUCCESS;
  if (!std::is_sorted(data->lengths.rbegin(), data->lengths.rend()))
    return refuse(CUDNN_STATUS_BAD_PARAM, "isSortedSequences == false");
  if (data->lengths.back() == 0) return refuse(CUDNN_STATUS_BAD_PARAM, "minSeqLengthInArray == 0");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t, cudnnForwardMode_t,
                                        cudnnRNNDataDescriptor_t, size_t* work, size_t* reserve) {
  *work = 128;
  *reserve = 0;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* size) {
  const int gates = static_cast<int>(rnn->config.gates());
  const Place last = place_of(rnn->config, 2 * gates - 1);
  *size = (last.bias + last.rows) * sizeof(float);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t, size_t,
                                      const void* space, int32_t id, cudnnTensorDescriptor_t matrix,
                                      void** matrix_at, cudnnTensorDescriptor_t bias,
                                      void** bias_at) {
  const Place place = place_of(rnn->config, id);
  auto* base = static_cast<float*>(const_cast<void*>(space));
  *matrix_at = base + place.matrix;
  *bias_at = base + place.bias;
  matrix->extents = {1, static_cast<int>(place.rows), static_cast<int>(place.columns)};
  bias->extents = {1, static_cast<int>(place.rows), 1};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t,
                              const int32_t[], cudnnRNNDataDescriptor_t x_data, const void* x,
                              cudnnRNNDataDescriptor_t y_data, void* y, cudnnTensorDescriptor_t,
                              const void*, void*, cudnnTensorDescriptor_t, const void*, void*,
                              size_t, const void* weights, size_t, void*, size_t, void*) {
  const bool equal = x_data->lengths.front() == x_data->lengths.back();
  if (rnn->algorithm == CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H && !equal)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the fake's small kernel wants equal lengths");
  if (rnn->algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC && !rnn->built)
    return refuse(CUDNN_STATUS_BAD_PARAM, "cudnnBuildRNNDynamic was not called");
  if (rnn->padded != (x_data->layout != CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED))
    return refuse(CUDNN_STATUS_BAD_PARAM, "padded data without padded IO, or the other way");

  // What is on the stream has to be done before host code reads it.
  const packrnn::gpu::Stream stream = packrnn::gpu::adopt_stream(0, handle->stream);
  packrnn::gpu::wait(stream);
  packrnn::gpu::destroy(stream);
  const std::vector<reference::Parameter> parameters =
      parameters_of(rnn->config, static_cast<const float*>(weights));
  for (int n = 0; n < static_cast<int>(x_data->lengths.size()); ++n) {
    reference::Sequence sequence;
    const int length = x_data->lengths[static_cast<std::size_t>(n)];
    for (int t = 0; t < length; ++t) {
      const float* row = static_cast<const float*>(x) + x_data->at(n, t);
      sequence.x.insert(sequence.x.end(), row, row + x_data->width);
    }
    const reference::Result result = reference::run(rnn->config, parameters, sequence);
    for (int t = 0; t < length; ++t)
      for (int u = 0; u < y_data->width; ++u)
        static_cast<float*>(y)[y_data->at(n, t) + static_cast<std::size_t>(u)] =
            static_cast<float>(result.y[static_cast<std::size_t>(t * y_data->width + u)]);
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
