// Work of a context that is recorded once and then launched as a whole, again and again: what it
// costs the host is one call, however many kernels there are.
#pragma once

#include <functional>
#include <memory>

#include "packrnn/runtime/context.hpp"

namespace packrnn {

/// Movable, not copyable. Launches use the same memory each time: what the body made (which the
/// graph keeps), and what it used of the caller's, which must live as long as the graph is
/// launched.
class Graph {
 public:
  /// Nothing to launch.
  Graph() = default;
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;
  /// Waits for launches that are still under way.
  ~Graph() = default;

  bool defined() const noexcept { return state_ != nullptr; }
  /// Puts one run of the body on the context's stream; the host does not wait. `context` is the one
  /// it was captured on (InvalidArgument).
  void launch(Context& context);

 private:
  friend Graph capture(Context& context, const std::function<void()>& body);

  struct State;
  struct Delete {
    void operator()(State* state) const noexcept;
  };
  std::unique_ptr<State, Delete> state_;
};

/// Runs `body`, whose work on `context` is recorded and not done; then each launch does it. In the
/// body: tensors may be made, and keep their memory in every launch; host tensors given to
/// to_device() are copied now, so a launch sees their present values; nothing may wait (to_host(),
/// synchronize() and wait_for() throw); the host's part (choices, checks, random numbers) is done
/// once. What `body` throws ends the capture and comes out of here; the context stays usable.
/// On the CPU: Unsupported.
Graph capture(Context& context, const std::function<void()>& body);

}  // namespace packrnn
