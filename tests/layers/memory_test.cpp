// What a call allocates, and how often it waits. This file is an executable of its own, because it
// counts every allocation of its process. (A simulated GPU allocates as it likes: there, only what
// the context holds is looked at.)

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>

#include "packrnn/layers/tape.hpp"
#include "packrnn/runtime/gpu.hpp"
#include "tests/layers/layer_fixture.hpp"

using namespace packrnn;
using namespace packrnn::tests;

namespace {

std::atomic<std::int64_t> made = 0, freed = 0;

void* counted(std::size_t bytes) {
  ++made;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

void* counted(std::size_t bytes, std::align_val_t align) {
  ++made;
  const auto unit = static_cast<std::size_t>(align);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}

void release(void* memory) noexcept {
  if (memory != nullptr) ++freed;
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t align) { return counted(bytes, align); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return counted(bytes, align); }
// A sanitizer's own nothrow forms would not end in ours, as the standard library's do.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

TEST_CASE("after the first call of a shape, only outputs are allocated") {
  const Kind kind = GENERATE(from_range(kKinds));
  const int threads = GENERATE(from_range(teams({1, 3})));
  const std::int64_t num_layers = GENERATE(1, 3);
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 16, 48, num_layers, true);
  const Recurrent layer = make_layer(config);
  Context context(Device::best(), {.threads = threads});
  const PackedSequence input = to_device(
      context, packed_of(config, random_batch(config, {30, 7, 12, 12, 1, 9}), Dtype::f32));
  for (int i = 0; i < 2; ++i) (void)layer.forward(context, input);

  const std::size_t capacity = context.workspace().capacity();
  std::int64_t first = -1;
  for (int i = 0; i < full_or_small(20, 5); ++i) {
    const std::int64_t before = made;
    const std::int64_t live = made - freed;
    {
      const PackedOutput output = layer.forward(context, input);
      const std::int64_t count = made - before;
      if (first < 0) first = count;
      if (!on_device()) CHECK(count == first);
    }
    if (!on_device()) CHECK(made - freed == live);
  }
  CHECK(context.workspace().capacity() == capacity);
  if (on_device()) return;
  // Output, h_n and c_n with their owners; a name per parameter at most. Nothing grows with
  // steps or sequences.
  CAPTURE(first);
  CHECK(first <= 24);
}

TEST_CASE("the number of allocations does not depend on steps or sequences") {
  if (on_device()) PACKRNN_SKIP("what is counted is the CPU engine's");
  const Kind kind = GENERATE(from_range(kKinds));
  const ref::Config config = config_of(kind, 8, 16, 2, true);
  const Recurrent layer = make_layer(config);
  Context context(Device::cpu(), {.threads = 2});
  const auto allocations = [&](const Counts& lengths) {
    const PackedSequence input = packed_of(config, random_batch(config, lengths), Dtype::f32);
    for (int i = 0; i < 2; ++i) (void)layer.forward(context, input);
    const std::int64_t before = made;
    (void)layer.forward(context, input);
    return made - before;
  };
  const std::int64_t few = allocations({3, 2});
  CHECK(allocations({400, 20, 1}) == few);
  CHECK(allocations(Counts(200, 3)) == few);
}

TEST_CASE("after the first steps of training, each allocates the same and leaves nothing behind") {
  if (on_device()) PACKRNN_SKIP("what is counted is the CPU engine's");
  const Kind kind = GENERATE(from_range(kKinds));
  const int threads = GENERATE(1, 3);
  // Weights and what is kept are large enough for memory that is used in turns.
  const ref::Config config = config_of(kind, 16, 48, 2, true);
  Recurrent layer = make_layer(config);
  Context context(Device::cpu(), {.threads = threads});
  const PackedSequence input =
      packed_of(config, random_batch(config, {30, 7, 12, 12, 1, 9, 0}), Dtype::f32);
  const Tensor dy = Tensor::zeros({input.layout().total(), 2 * layer.state_size()}, Dtype::f32);
  const auto step = [&] {
    layer.parameters().change_values();  // as an optimizer: all weights are packed anew
    layer.parameters().zero_gradients();
    Tape tape(context);
    const PackedVariable x = tape.input(input.clone());
    tape.backward({{layer.forward(tape, x).output.data, dy}});
  };
  for (int i = 0; i < 3; ++i) step();
  const std::size_t capacity = context.workspace().capacity();
  std::int64_t first = -1;
  for (int i = 0; i < 5; ++i) {
    const std::int64_t before = made, live = made - freed;
    step();
    if (first < 0) first = made - before;
    CHECK(made - before == first);
    CHECK(made - freed == live);
  }
  CHECK(context.workspace().capacity() == capacity);
}

TEST_CASE("B86: memory stays flat while lengths vary") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru_reset_before);
  const ref::Config config = config_of(kind, 12, 24, 2, true);
  const Recurrent layer = make_layer(config);
  Context context(Device::best(), {.threads = 2});
  const auto call = [&](const Counts& lengths) {
    const Batch batch = random_batch(config, lengths, 1, false);
    (void)layer.forward(context, to_device(context, packed_of(config, batch, Dtype::f32)));
  };
  const std::size_t N = on_cpu_or_device(32U, 4U);
  const std::int64_t longest = on_cpu_or_device(500, 40);
  call(Counts(N, longest));
  const std::size_t capacity = context.workspace().capacity();
  for (std::int64_t T = longest - 10; T > 10; T -= longest / 12)
    for (int i = 0; i < 2; ++i) call(Counts(N, T));
  CHECK(context.workspace().capacity() == capacity);

  std::mt19937 generator(21);
  const auto random_calls = [&](int count) {
    for (int i = 0; i < count; ++i)
      call(random_lengths(generator, 1 + static_cast<std::int64_t>(generator() % N), 0,
                          on_cpu_or_device(30, 9)));
  };
  random_calls(
      on_cpu_or_device(300, full_or_small(20, 5)));  // plans of all sorts: their cache is full
  const std::int64_t live = made - freed;
  const std::size_t plans = context.plans().size();
  random_calls(on_device() ? full_or_small(20, 5) : full_or_small(1500, 100));
  CHECK(context.workspace().capacity() == capacity);
  CHECK(context.plans().size() <= 64);
  if (on_device()) return;
  // Live allocations now and then differ by plans (a node and a text each), not by calls.
  const auto bound = 4 * static_cast<std::int64_t>(context.plans().size() + plans);
  CHECK(std::abs((made - freed) - live) <= bound);
}

TEST_CASE("B36: scratch memory grows with rows, not with the padded volume") {
  const std::size_t N = on_cpu_or_device(256U, 100U), T = on_cpu_or_device(4000U, 60U);
  const std::size_t H = on_cpu_or_device(64U, 16U);
  const ref::Config config = config_of(Kind::lstm, 8, static_cast<std::int64_t>(H), 1);
  const Recurrent layer = make_layer(config);
  const auto capacity = [&](const Counts& lengths) {
    Context context(Device::best(), {.threads = 2});
    const Batch batch = random_batch(config, lengths, 1, false);
    (void)layer.forward(context, to_device(context, packed_of(config, batch, Dtype::f32)));
    return context.workspace().capacity();
  };
  Counts lengths(N, 1);
  lengths[N / 2] = static_cast<std::int64_t>(T);
  const std::size_t row = 4 * H * sizeof(float);
  // A GPU keeps more beside the rows (cell states, tables), and no block below 64 KiB.
  const std::size_t packed = (T + N - 1) * row, padded = T * N * row;
  CHECK(capacity(lengths) <= (on_device() ? 2 * packed + (256U << 10) : packed));
  CHECK(capacity(lengths) < (on_device() ? padded : padded / 100));
}

TEST_CASE("the scratch memory of the CPU does not hold the gates of all rows of a step") {
  if (on_device()) return;
  const std::int64_t N = 4000, H = 64;
  const Lstm layer({.input_size = 1, .hidden_size = H});
  Context context(Device::cpu(), {.threads = 1});
  (void)layer.forward(context, Tensor::zeros({1, N, 1}, Dtype::f32).view());
  // h before and after, c; rows are padded by at most two vectors of 64 bytes.
  const std::int64_t states = 3 * N * (H * 4 + 128), gates = N * 4 * H * 4;
  CHECK(context.workspace().capacity() < static_cast<std::size_t>(states + gates / 2));
}

TEST_CASE("a forward call never waits for a GPU") {
  if (!on_device()) PACKRNN_SKIP("there is nothing to wait for on the CPU");
  const Kind kind = GENERATE(from_range(kKinds));
  const Dtype dtype = GENERATE(from_range(layer_dtypes()));
  PACKRNN_ONE_IN(5);
  const ref::Config config = config_of(kind, 5, 9, 2, true);
  const Recurrent layer = make_layer(config, {.dtype = dtype, .dropout = 0.5});
  Context context;
  const Batch batch = random_batch(config, {4, 0, 7, 1});
  const PackedSequence input = to_device(context, packed_of(config, batch, dtype));
  const Tensor padded = context.to_device(padded_of(config, batch, dtype, 8, false, 0.0));
  const State state = to_device(context, state_of(config, batch, dtype));
  const State in_front = to_device(context, state_of(config, batch, dtype, true));
  const auto calls = [&] {
    (void)layer.forward(context, input, {.state = state, .training = true});
    (void)layer.forward(context, input, {.state = in_front, .state_batch_first = true});
    (void)layer.forward_padded(context, padded, Lengths{4, 0, 7, 1}, {.state = state});
    const PackedSequence packed = pack_padded_sequence(context, padded, {8, 8, 2, 3});
    std::vector<Tensor> cells;
    ForwardOptions options;
    if (config.cell == ref::Cell::lstm) options.cells = &cells;
    const PackedOutput output = layer.forward(context, packed, options);
    (void)pad_packed_sequence(context, output.output);
    (void)unpack_sequence(context, output.output);
    (void)last_element(context, output.output);
    (void)mean_sequences(context, output.output);
  };
  calls();  // makes the panels, which may wait
  const std::int64_t before = gpu::waits();
  for (int i = 0; i < 3; ++i) calls();
  CHECK(gpu::waits() == before);
}
