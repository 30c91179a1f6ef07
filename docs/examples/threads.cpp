// One model, many threads: a loaded layer is const and shared, each thread brings its own Context.
#include <cstdio>
#include <cstring>
#include <packrnn/packrnn.hpp>
#include <thread>
#include <vector>

namespace {

using namespace packrnn;

// The work of one request: a batch of uneven sequences, made by rule.
PackedSequence request(Context& context, std::uint64_t number) {
  const Lengths lengths{5, 30, 12, 1};
  Tensor batch = Tensor::empty({30, 4, 8}, Dtype::f32);
  Generator random(number);
  fill_uniform(random, batch, -1.0, 1.0);
  return pack_padded_sequence(context, batch, lengths);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.view().raw(), b.view().raw(), a.view().bytes()) == 0;
}

}  // namespace

int main() {
  constexpr std::size_t kThreads = 4;
  const Gru model({.input_size = 8, .hidden_size = 64, .num_layers = 2});
  std::vector<Tensor> served(kThreads);

  // [threads]
  // Requests side by side: one thread each, so that the contexts do not compete for the CPUs. For
  // one request at a time, leave `threads` at 0 and let the context use all of them.
  std::vector<std::thread> workers;
  for (std::size_t w = 0; w < kThreads; ++w)
    workers.emplace_back([&, w] {
      Context context(Device::cpu(), {.threads = 1});  // one per worker, kept for its lifetime
      served[w] = model.forward(context, request(context, w)).state.h;
    });
  for (std::thread& worker : workers) worker.join();
  // [/threads]

  // The same requests one after the other, in a context with three threads: the same bits.
  Context context(Device::cpu(), {.threads = 3});
  bool same = true;
  for (std::size_t w = 0; w < kThreads; ++w)
    same = same && same_bits(served[w], model.forward(context, request(context, w)).state.h);
  std::printf("%zu workers with one thread each, and one context with %d: %s\n", kThreads,
              context.threads(), same ? "the same bits" : "OTHER BITS");

  // [explain]
  std::printf("%s", model.explain(context, request(context, 0).layout()).c_str());
  // [/explain]
  return same ? 0 : 1;
}
