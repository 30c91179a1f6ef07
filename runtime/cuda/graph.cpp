// Graphs by stream capture.
#include <memory>
#include <utility>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"

namespace packrnn::gpu {
namespace {

void finish_capture(Stream stream) noexcept {
  std::vector<void*> released;
  {
    const std::lock_guard lock(stream->mutex);
    stream->capturing = false;
    released = std::exchange(stream->released, {});
  }
  for (void* data : released) release(stream->device, data, stream);
}

}  // namespace

void begin_capture(Stream stream) {
  const Current current(stream->device);
  // Relaxed: this thread may allocate meanwhile, and others are not disturbed.
  check(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
  stream->capturing = true;
}

Graph end_capture(Stream stream) {
  const Current current(stream->device);
  cudaGraph_t captured = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream->stream, &captured);
  finish_capture(stream);
  check(error, "capturing a graph");
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(captured, cudaGraphDestroy);
  auto handle = std::make_unique<GraphHandle>();
  handle->device = stream->device;
  check(cudaGraphInstantiate(&handle->graph, captured, 0), "cudaGraphInstantiate");
  return handle.release();
}

bool capturing(Stream stream) noexcept { return stream->capturing; }

void launch(Graph graph, Stream stream) {
  const Current current(stream->device);
  check(cudaGraphLaunch(graph->graph, stream->stream), "cudaGraphLaunch");
}

void destroy(Graph graph) noexcept {
  if (graph == nullptr) return;
  quietly(graph->device, [&] { return cudaGraphExecDestroy(graph->graph); });
  delete graph;
}

}  // namespace packrnn::gpu
