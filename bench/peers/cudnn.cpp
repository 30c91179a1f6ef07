// cuDNN 9: cudnnRNNForward with an RNN descriptor of version 8, which is all that cuDNN 9 has. The
// calls go through pointers of the types in its header; memory and streams are runtime/gpu.hpp's.
#include "bench/peers/cudnn.hpp"

#include <fmt/format.h>

#include <array>
#include <packrnn/runtime/error.hpp>
#include <packrnn/runtime/gpu.hpp>
#include <set>
#include <utility>

#include "bench/peers/cudnn_library.hpp"

namespace packrnn::bench {
namespace {

struct Algorithm {
  cudnnRNNAlgo_t value;
  const char* name;
};
constexpr Algorithm kAlgorithms[] = {
    {CUDNN_RNN_ALGO_STANDARD, "STANDARD"},
    {CUDNN_RNN_ALGO_PERSIST_STATIC, "PERSIST_STATIC"},
    {CUDNN_RNN_ALGO_PERSIST_DYNAMIC, "PERSIST_DYNAMIC"},
    {CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H, "PERSIST_STATIC_SMALL_H"},
};

struct Layout {
  cudnnRNNDataLayout_t value;
  const char* name;
  RowOrder order;
};
constexpr Layout kLayouts[] = {
    {CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, "SEQ_MAJOR_PACKED", RowOrder::packed},
    {CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, "SEQ_MAJOR_UNPACKED", RowOrder::seq_major},
    {CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED, "BATCH_MAJOR_UNPACKED", RowOrder::batch_major},
};

/// How cuDNN is told to multiply.
struct Math {
  const char* name;
  cudnnMathType_t type;
  cudnnDataType_t precision;
  double allowed;  // outputs are at most 1; what rounding of this kind makes of long sequences
};

std::vector<Math> maths_for(const Mode& mode) {
  switch (mode.dtype) {
    case Dtype::f64:
      return {{"DEFAULT_MATH", CUDNN_DEFAULT_MATH, CUDNN_DATA_DOUBLE, 1e-9}};
    case Dtype::bf16:
      return {{"TENSOR_OP_MATH", CUDNN_TENSOR_OP_MATH, CUDNN_DATA_FLOAT, 1e-1}};
    case Dtype::f16:
      return {{"TENSOR_OP_MATH", CUDNN_TENSOR_OP_MATH, CUDNN_DATA_FLOAT, 2e-2},
              {"TENSOR_OP_MATH+HALF", CUDNN_TENSOR_OP_MATH, CUDNN_DATA_HALF, 1e-1}};
    default:
      break;
  }
  if (mode.math != F32Math::tf32) return {{"FMA_MATH", CUDNN_FMA_MATH, CUDNN_DATA_FLOAT, 1e-3}};
  return {{"DEFAULT_MATH", CUDNN_DEFAULT_MATH, CUDNN_DATA_FLOAT, 2e-2},
          {"TENSOR_OP_MATH_ALLOW_CONVERSION", CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
           CUDNN_DATA_FLOAT, 2e-2}};
}

cudnnDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return CUDNN_DATA_DOUBLE;
    case Dtype::f16:
      return CUDNN_DATA_HALF;
    case Dtype::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

cudnnRNNMode_t cell_mode(const std::string& cell) {
  return cell == "lstm" ? CUDNN_LSTM : cell == "gru" ? CUDNN_GRU : CUDNN_RNN_TANH;
}

/// One combination: descriptors, weights and memory, and the call.
class Session {
 public:
  Session(std::shared_ptr<const CudnnLibrary> library, cudnnHandle_t handle, Context& context,
          const Problem& problem, const Recurrent& layer, const DeviceInput& input,
          const Algorithm& algorithm, const Layout& layout, const Math& math)
      : library_(std::move(library)),
        handle_(handle),
        context_(context),
        problem_(problem),
        type_(data_type(problem.mode.dtype)),
        x_(input.in(layout.order)),
        layout_(*input.layout),
        dropout_(library_->cudnnCreateDropoutDescriptor, library_->cudnnDestroyDropoutDescriptor,
                 *library_, "cudnnCreateDropoutDescriptor"),
        rnn_(library_->cudnnCreateRNNDescriptor, library_->cudnnDestroyRNNDescriptor, *library_,
             "cudnnCreateRNNDescriptor"),
        x_data_(library_->cudnnCreateRNNDataDescriptor, library_->cudnnDestroyRNNDataDescriptor,
                *library_, "cudnnCreateRNNDataDescriptor"),
        y_data_(library_->cudnnCreateRNNDataDescriptor, library_->cudnnDestroyRNNDataDescriptor,
                *library_, "cudnnCreateRNNDataDescriptor"),
        state_(library_->cudnnCreateTensorDescriptor, library_->cudnnDestroyTensorDescriptor,
               *library_, "cudnnCreateTensorDescriptor") {
    const bool packed = layout.order == RowOrder::packed;
    check(library_->cudnnSetDropoutDescriptor(dropout_.get(), handle_, 0.0F, nullptr, 0, 0),
          "cudnnSetDropoutDescriptor");
    check(library_->cudnnSetRNNDescriptor_v8(
              rnn_.get(), algorithm.value, cell_mode(problem.cell), CUDNN_RNN_DOUBLE_BIAS,
              CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT, type_, math.precision, math.type,
              static_cast<std::int32_t>(problem.input), static_cast<std::int32_t>(problem.hidden),
              static_cast<std::int32_t>(problem.hidden), 1, dropout_.get(),
              packed ? CUDNN_RNN_PADDED_IO_DISABLED : CUDNN_RNN_PADDED_IO_ENABLED),
          "cudnnSetRNNDescriptor_v8");
    if (algorithm.value == CUDNN_RNN_ALGO_PERSIST_DYNAMIC)
      check(library_->cudnnBuildRNNDynamic(handle_, rnn_.get(), static_cast<int>(layout_.batch())),
            "cudnnBuildRNNDynamic");
    describe_data(layout);
    allocate(layout.order);
    set_weights(layer);
  }

  void run() {
    check(library_->cudnnRNNForward(handle_, rnn_.get(), CUDNN_FWD_MODE_INFERENCE,
                                    static_cast<const std::int32_t*>(device_lengths_.span().raw()),
                                    x_data_.get(), x_.raw(), y_data_.get(), y_.span().raw(),
                                    state_.get(), nullptr, h_n_.span().raw(), state_.get(), nullptr,
                                    problem_.cell == "lstm" ? c_n_.span().raw() : nullptr,
                                    weights_.view().bytes(), weights_.span().raw(), work_bytes_,
                                    work_.defined() ? work_.span().raw() : nullptr, 0, nullptr),
          "cudnnRNNForward");
  }

  Tensor output() { return context_.to_host(y_.view()); }

 private:
  void check(cudnnStatus_t status, const char* call) const { library_->check(status, call); }

  Tensor bytes(std::size_t count) {
    // In words, with a few to spare: cuDNN may want no memory, a tensor has some.
    return context_.empty({static_cast<std::int64_t>(count / 4 + 64)}, Dtype::i32);
  }

  void describe_data(const Layout& layout) {
    // Packed rows stand in sorted order, as cuDNN wants them; padded ones in the caller's.
    std::vector<int> lengths;
    for (const std::int64_t n : layout_.sorted_indices())
      lengths.push_back(static_cast<int>(layout_.lengths()[static_cast<std::size_t>(n)]));
    if (layout.order != RowOrder::packed)
      lengths.assign(layout_.lengths().begin(), layout_.lengths().end());
    const auto describe = [&](cudnnRNNDataDescriptor_t data, std::int64_t width) {
      check(library_->cudnnSetRNNDataDescriptor(data, type_, layout.value,
                                                static_cast<int>(layout_.steps()),
                                                static_cast<int>(layout_.batch()),
                                                static_cast<int>(width), lengths.data(), nullptr),
            "cudnnSetRNNDataDescriptor");
    };
    describe(x_data_.get(), problem_.input);
    describe(y_data_.get(), problem_.hidden);
    const int batch = static_cast<int>(layout_.batch()), hidden = static_cast<int>(problem_.hidden);
    const std::array<int, 3> extents{1, batch, hidden}, strides{batch * hidden, hidden, 1};
    check(library_->cudnnSetTensorNdDescriptor(state_.get(), type_, 3, extents.data(),
                                               strides.data()),
          "cudnnSetTensorNdDescriptor");
    std::vector<std::int32_t> copy(lengths.begin(), lengths.end());
    device_lengths_ = context_.to_device(Tensor::from(copy, {layout_.batch()}).view());
  }

  void allocate(RowOrder order) {
    const Dtype dtype = problem_.mode.dtype;
    const std::int64_t steps = layout_.steps(), batch = layout_.batch(), hidden = problem_.hidden;
    y_ = order == RowOrder::packed      ? context_.zeros({layout_.total(), hidden}, dtype)
         : order == RowOrder::seq_major ? context_.zeros({steps, batch, hidden}, dtype)
                                        : context_.zeros({batch, steps, hidden}, dtype);
    h_n_ = context_.zeros({batch, hidden}, dtype);
    c_n_ = context_.zeros({batch, hidden}, dtype);
    std::size_t work = 0, reserve = 0, weights = 0;
    check(library_->cudnnGetRNNTempSpaceSizes(handle_, rnn_.get(), CUDNN_FWD_MODE_INFERENCE,
                                              x_data_.get(), &work, &reserve),
          "cudnnGetRNNTempSpaceSizes");
    check(library_->cudnnGetRNNWeightSpaceSize(handle_, rnn_.get(), &weights),
          "cudnnGetRNNWeightSpaceSize");
    work_bytes_ = work;
    if (work > 0) work_ = bytes(work);
    weights_ = bytes(weights);
    gpu::fill(weights_.span().raw(), 0, weights_.view().bytes(), context_.stream());
  }

  /// Copies the rows of each gate, and its bias, to where cuDNN wants them. Its numbering of gates
  /// is PyTorch's, and so ours.
  void set_weights(const Recurrent& layer) {
    using Descriptor = CudnnHandle<cudnnTensorDescriptor_t>;
    const std::int64_t gates = problem_.gates(), hidden = problem_.hidden;
    for (std::int64_t id = 0; id < 2 * gates; ++id) {
      const bool recurrent = id >= gates;
      const std::int64_t first = id % gates * hidden;
      const Descriptor matrix(library_->cudnnCreateTensorDescriptor,
                              library_->cudnnDestroyTensorDescriptor, *library_,
                              "cudnnCreateTensorDescriptor");
      const Descriptor bias(library_->cudnnCreateTensorDescriptor,
                            library_->cudnnDestroyTensorDescriptor, *library_,
                            "cudnnCreateTensorDescriptor");
      void *matrix_at = nullptr, *bias_at = nullptr;
      check(library_->cudnnGetRNNWeightParams(handle_, rnn_.get(), 0, weights_.view().bytes(),
                                              weights_.span().raw(), static_cast<std::int32_t>(id),
                                              matrix.get(), &matrix_at, bias.get(), &bias_at),
            "cudnnGetRNNWeightParams");
      const Parameters& parameters = layer.parameters();
      put(parameters.value(recurrent ? "weight_hh_l0" : "weight_ih_l0").rows(first, first + hidden),
          matrix.get(), matrix_at);
      put(parameters.value(recurrent ? "bias_hh_l0" : "bias_ih_l0").rows(first, first + hidden),
          bias.get(), bias_at);
    }
    context_.synchronize();  // the layer's memory is free from here on
  }

  void put(const TensorView& rows, cudnnTensorDescriptor_t descriptor, void* target) {
    std::array<int, 8> extents{}, strides{};
    cudnnDataType_t type{};
    int rank = 0;
    check(library_->cudnnGetTensorNdDescriptor(descriptor, 8, &type, &rank, extents.data(),
                                               strides.data()),
          "cudnnGetTensorNdDescriptor");
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= extents[static_cast<std::size_t>(i)];
    if (!target || type != type_ || count != rows.elements())
      throw CudnnRefusal{fmt::format(
          "cudnnGetRNNWeightParams: {} values of type {}, expected {} of {}", target ? count : 0,
          static_cast<int>(type), rows.elements(), static_cast<int>(type_))};
    gpu::copy(target, rows.raw(), rows.bytes(), gpu::Copy::to_device, context_.stream());
  }

  std::shared_ptr<const CudnnLibrary> library_;
  cudnnHandle_t handle_;
  Context& context_;
  Problem problem_;
  cudnnDataType_t type_;
  TensorView x_;
  const PackedLayout& layout_;
  CudnnHandle<cudnnDropoutDescriptor_t> dropout_;
  CudnnHandle<cudnnRNNDescriptor_t> rnn_;
  CudnnHandle<cudnnRNNDataDescriptor_t> x_data_, y_data_;
  CudnnHandle<cudnnTensorDescriptor_t> state_;
  Tensor device_lengths_, y_, h_n_, c_n_, weights_, work_;
  std::size_t work_bytes_ = 0;
};

class LoadedCudnn : public Cudnn {
 public:
  explicit LoadedCudnn(std::shared_ptr<const CudnnLibrary> library) : library_(std::move(library)) {
    library_->check(library_->cudnnCreate(&handle_), "cudnnCreate");
  }
  ~LoadedCudnn() override { library_->cudnnDestroy(handle_); }
  LoadedCudnn(const LoadedCudnn&) = delete;
  LoadedCudnn& operator=(const LoadedCudnn&) = delete;

  std::string version() const override {
    const std::size_t version = library_->cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  std::vector<CudnnRun> prepare(Context& context, const Problem& problem, const Recurrent& layer,
                                const DeviceInput& input) override {
    std::vector<CudnnRun> runs;
    const bool dynamic = compiled_for_
                             .insert(fmt::format("{} {} {}", problem.cell, problem.mode.name(),
                                                 problem.equal_lengths()))
                             .second;
    for (const Layout& layout : kLayouts)
      for (const Algorithm& algorithm : kAlgorithms)
        for (const Math& math : maths_for(problem.mode)) {
          if (algorithm.value == CUDNN_RNN_ALGO_PERSIST_DYNAMIC && !dynamic) continue;
          CudnnRun run{algorithm.name, layout.name, math.name, layout.order,
                       math.allowed,   {},          {},        {}};
          try {
            library_->check(library_->cudnnSetStream(
                                handle_, static_cast<cudaStream_t>(gpu::native(context.stream()))),
                            "cudnnSetStream");
            auto session = std::make_shared<Session>(library_, handle_, context, problem, layer,
                                                     input, algorithm, layout, math);
            session->run();
            context.synchronize();
            run.run = [session] {
              try {
                session->run();
              } catch (const CudnnRefusal& refused) {
                throw DeviceError(refused.text);
              }
            };
            run.output = [session] { return session->output(); };
          } catch (const CudnnRefusal& refused) {
            run.refusal = refused.text;
          } catch (const Error& error) {  // no memory left, or the device is lost
            run.refusal = error.what();
          }
          runs.push_back(std::move(run));
        }
    return runs;
  }

 private:
  std::shared_ptr<const CudnnLibrary> library_;
  cudnnHandle_t handle_ = nullptr;
  std::set<std::string> compiled_for_;
};

}  // namespace

std::unique_ptr<Cudnn> Cudnn::open(std::string& reason) {
  auto library = std::make_shared<CudnnLibrary>();
  if (!library->load(reason)) return nullptr;
  try {
    return std::make_unique<LoadedCudnn>(std::move(library));
  } catch (const CudnnRefusal& refused) {
    reason = refused.text;
    return nullptr;
  }
}

}  // namespace packrnn::bench
