// Stands in for the kernels of cuda/ in a build without CUDA.
#include "packrnn/kernels/cuda/activation.hpp"
#include "packrnn/kernels/cuda/calibrate.hpp"
#include "packrnn/kernels/cuda/cluster.hpp"
#include "packrnn/kernels/cuda/dropout.hpp"
#include "packrnn/kernels/cuda/elementwise.hpp"
#include "packrnn/kernels/cuda/gradient_product.hpp"
#include "packrnn/kernels/cuda/layer_norm.hpp"
#include "packrnn/kernels/cuda/layout.hpp"
#include "packrnn/kernels/cuda/linear.hpp"
#include "packrnn/kernels/cuda/pack.hpp"
#include "packrnn/kernels/cuda/pack_panels.hpp"
#include "packrnn/kernels/cuda/persistent_backward_run.hpp"
#include "packrnn/kernels/cuda/persistent_exact.hpp"
#include "packrnn/kernels/cuda/persistent_run.hpp"
#include "packrnn/kernels/cuda/recurrent_gates.hpp"
#include "packrnn/kernels/cuda/reduce.hpp"
#include "packrnn/kernels/cuda/scatter.hpp"
#include "packrnn/kernels/cuda/step.hpp"
#include "packrnn/kernels/cuda/step_backward.hpp"
#include "packrnn/kernels/cuda/tensor_step.hpp"
#include "packrnn/runtime/error.hpp"

namespace packrnn::kernels::cuda {
namespace {

/// Nobody gets here: there is no context on a GPU without CUDA.
[[noreturn]] void absent() { throw Unsupported("this build of packrnn has no CUDA kernels"); }

}  // namespace

// ---- rows and layouts ---------------------------------------------------------------------------

void pack_rows(gpu::Stream, const DeviceLayout&, const Sequences&, const Row&, void*) { absent(); }
void unpack_rows(gpu::Stream, const DeviceLayout&, const void*, const Row&, const Sequences&) {
  absent();
}
void unpack_cells(gpu::Stream, const DeviceLayout&, const void*, const Row&, const Cells&, void*) {
  absent();
}
void pad_cells(gpu::Stream, const Sequences&, const std::int64_t*, const Row&, const Cells&,
               void*) {
  absent();
}
void gather_rows(gpu::Stream, const void*, std::int64_t, const void*, bool, std::int64_t, bool,
                 const Row&, void*, DeviceFault*) {
  absent();
}
void pick_rows(gpu::Stream, const DeviceLayout&, const void*, bool, const Row&, void*) { absent(); }
void put_rows(gpu::Stream, const DeviceLayout&, const void*, bool, const Row&, void*) { absent(); }
void spread_rows(gpu::Stream, const void*, std::int64_t, std::int64_t, const Row&, void*,
                 std::int64_t) {
  absent();
}
void swap_axes(gpu::Stream, const void*, std::int64_t, std::int64_t, const Row&, void*) {
  absent();
}
void fill_rows(gpu::Stream, std::int64_t, const Row&, void*) { absent(); }
void reduce(gpu::Stream, Reduction, const DeviceLayout&, Dtype, const void*, std::int64_t, double,
            void*) {
  absent();
}
void reduce_backward(gpu::Stream, Reduction, const DeviceLayout&, Dtype, const void*, std::int64_t,
                     const void*, void*) {
  absent();
}
void scatter_add(Context&, const ScatterAdd&) { absent(); }
void dropout(gpu::Stream, const DeviceLayout&, PhiloxKey, double, Dtype, std::int64_t, void*) {
  absent();
}
void add_scaled(gpu::Stream, Dtype, const void*, double, const void*, std::int64_t, void*) {
  absent();
}
void multiply(gpu::Stream, Dtype, const void*, const void*, std::int64_t, void*) { absent(); }
void scale(gpu::Stream, Dtype, const void*, double, std::int64_t, void*) { absent(); }
void activate(gpu::Stream, Activation, Dtype, const void*, std::int64_t, void*) { absent(); }
void activate_backward(gpu::Stream, Activation, Dtype, const void*, const void*, std::int64_t,
                       void*) {
  absent();
}
void layer_norm(Context&, const TensorView&, const TensorView&, const TensorView&, double,
                const TensorSpan&) {
  absent();
}
void layer_norm_backward(Context&, const TensorView&, const TensorView&, double, const TensorView&,
                         const TensorSpan&, const TensorSpan&, const TensorSpan&) {
  absent();
}
void convert(gpu::Stream, const void*, Dtype, std::int64_t, void*, Dtype) { absent(); }
std::int64_t layout_scratch(std::int32_t, std::int32_t) { absent(); }
void make_layout(gpu::Stream, const LayoutJob&, std::uint32_t*, std::int32_t) { absent(); }

// ---- selection and the tensor-core step path ----------------------------------------------------

DeviceConstants measure(int, DeviceConstants, const CalibrationEffort&) { absent(); }
void tensor_step_forward(Context&, const RecurrentRun&) { absent(); }

// ---- the exact path
// -------------------------------------------------------------------------------

void chain_product(gpu::Stream, const ChainProduct&) { absent(); }
void fill_panels(gpu::Stream, const TensorView&, const TensorView&, bool, void*) { absent(); }
void gradient_product(Context&, const GradientProduct&) { absent(); }
void column_sums(Context&, const ColumnSums&) { absent(); }
void step_forward(Context&, const RecurrentRun&) { absent(); }
void empty_states(gpu::Stream, const RecurrentRun&) { absent(); }
void zero_unused_rows(gpu::Stream, const DeviceLayout&, const TensorSpan&, const TensorSpan&) {
  absent();
}
std::vector<Mapping> exact_persistent_mappings(int, const RecurrentShape&, std::int64_t, int,
                                               std::string&) {
  absent();
}
void exact_persistent_forward(Context&, const RecurrentRun&, const Mapping&) { absent(); }

// ---- the way back
// --------------------------------------------------------------------------------

void pack_panels(gpu::Stream, const RecurrentShape&, const RecurrentWeights&, void*) { absent(); }
void pack_backward_panels(gpu::Stream, const RecurrentShape&, const RecurrentWeights&, void*) {
  absent();
}
void recompute_gates(Context&, const GatesRun&, std::int64_t) { absent(); }
void hidden_states(gpu::Stream, const GatesRun&, const void*, void*) { absent(); }
void step_backward(Context&, const RecurrentBackwardRun&) { absent(); }
void empty_gradients(gpu::Stream, const RecurrentBackwardRun&) { absent(); }

// ---- the persistent kernels on tensor cores -----------------------------------------------------

PersistentVariants persistent_bf16_variants() { absent(); }
PersistentVariants persistent_f16_variants() { absent(); }
PersistentVariants persistent_tf32_variants() { absent(); }
PersistentVariants persistent_tf32x3_variants() { absent(); }
void prepare_persistent(gpu::Stream, const PersistentRun&, std::size_t, int) { absent(); }
PersistentBackwardVariants persistent_backward_bf16_variants() { absent(); }
PersistentBackwardVariants persistent_backward_f16_variants() { absent(); }
PersistentBackwardVariants persistent_backward_tf32_variants() { absent(); }
PersistentBackwardVariants persistent_backward_tf32x3_variants() { absent(); }
void empty_dgates(gpu::Stream, const PersistentBackwardRun&, std::size_t, int) { absent(); }
std::vector<ClusterVariant> cluster_bf16_variants() { absent(); }
std::vector<ClusterVariant> cluster_f16_variants() { absent(); }

}  // namespace packrnn::kernels::cuda
