#include "packrnn/runtime/graph.hpp"

#include <utility>

#include "packrnn/runtime/device_queue.hpp"
#include "packrnn/runtime/expects.hpp"

namespace packrnn {

// Members die from the last: first the graph itself, when nothing of it runs any more.
struct Graph::State {
  std::shared_ptr<DeviceQueue> queue;
  Recording recording;
  gpu::Event launched = nullptr;
  gpu::Graph graph = nullptr;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (launched != nullptr) {
      try {
        if (!gpu::done(launched)) gpu::wait(launched);
      } catch (...) {
        // The device failed, so nothing runs any more; whoever waits next hears of it.
      }
      gpu::destroy(launched);
    }
    if (graph != nullptr) gpu::destroy(graph);
  }
};

void Graph::Delete::operator()(State* state) const noexcept { delete state; }

void Graph::launch(Context& context) {
  expects(state_ != nullptr, "the graph is empty: it was never captured, or moved from");
  expects(context.queue() == state_->queue.get(),
          "the graph was captured on another context: its memory is ordered by that one's stream");
  gpu::launch(state_->graph, state_->queue->stream());
  gpu::record(state_->launched, state_->queue->stream());
}

Graph capture(Context& context, const std::function<void()>& body) {
  if (context.device().type != DeviceType::cuda)
    throw Unsupported("a graph can be captured on a GPU only, but the context is on cpu");
  Graph result;
  result.state_.reset(new Graph::State);
  Graph::State& state = *result.state_;
  state.queue = context.shared_queue();
  state.launched = gpu::create_event(state.queue->device());
  state.queue->begin_capture(state.recording);
  try {
    body();
  } catch (...) {
    try {
      state.graph = state.queue->end_capture();
    } catch (...) {
      // The body's own exception says more.
    }
    throw;
  }
  state.graph = state.queue->end_capture();
  return result;
}

}  // namespace packrnn
