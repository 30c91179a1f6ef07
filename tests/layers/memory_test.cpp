// What a call allocates. This file is an executable of its own, because it counts every allocation
// of its process.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>

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
  const int threads = GENERATE(1, 3);
  const std::int64_t num_layers = GENERATE(1, 3);
  const ref::Config config = config_of(kind, 16, 48, num_layers, true);
  const Recurrent layer = make_layer(config);
  const PackedSequence input =
      packed_of(config, random_batch(config, {30, 7, 12, 12, 1, 9}), Dtype::f32);
  Context context(Device::cpu(), {.threads = threads});
  for (int i = 0; i < 2; ++i) (void)layer.forward(context, input);

  const std::size_t capacity = context.workspace().capacity();
  std::int64_t first = -1;
  for (int i = 0; i < 20; ++i) {
    const std::int64_t before = made;
    const std::int64_t live = made - freed;
    {
      const PackedOutput output = layer.forward(context, input);
      const std::int64_t count = made - before;
      if (first < 0) first = count;
      CHECK(count == first);
    }
    CHECK(made - freed == live);
  }
  CHECK(context.workspace().capacity() == capacity);
  // Output, h_n and c_n with their owners; a name per parameter at most. Nothing grows with
  // steps or sequences.
  CAPTURE(first);
  CHECK(first <= 24);
}

TEST_CASE("the number of allocations does not depend on steps or sequences") {
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

TEST_CASE("B86: memory stays flat while lengths vary") {
  const Kind kind = GENERATE(Kind::lstm, Kind::gru_reset_before);
  const ref::Config config = config_of(kind, 12, 24, 2, true);
  const Recurrent layer = make_layer(config);
  Context context(Device::cpu(), {.threads = 2});
  const auto call = [&](const Counts& lengths) {
    (void)layer.forward(context,
                        packed_of(config, random_batch(config, lengths, 1, false), Dtype::f32));
  };
  call(Counts(32, 500));
  const std::size_t capacity = context.workspace().capacity();
  for (std::int64_t T = 490; T > 10; T -= 40)
    for (int i = 0; i < 2; ++i) call(Counts(32, T));
  CHECK(context.workspace().capacity() == capacity);

  std::mt19937 generator(21);
  const auto random_calls = [&](int count) {
    for (int i = 0; i < count; ++i)
      call(random_lengths(generator, 1 + static_cast<std::int64_t>(generator() % 32), 0, 30));
  };
  random_calls(300);  // plans of all sorts: their cache is full
  const std::int64_t live = made - freed;
  const std::size_t plans = context.plans().size();
  random_calls(kSanitized ? 100 : 1500);
  CHECK(context.workspace().capacity() == capacity);
  CHECK(context.plans().size() <= 64);
  // Live allocations now and then differ by plans (a node and a text each), not by calls.
  const auto bound = 4 * static_cast<std::int64_t>(context.plans().size() + plans);
  CHECK(std::abs((made - freed) - live) <= bound);
}

TEST_CASE("B36: scratch memory grows with rows, not with the padded volume") {
  const ref::Config config = config_of(Kind::lstm, 8, 64, 1);
  const Recurrent layer = make_layer(config);
  const auto capacity = [&](const Counts& lengths) {
    Context context(Device::cpu(), {.threads = 2});
    (void)layer.forward(context,
                        packed_of(config, random_batch(config, lengths, 1, false), Dtype::f32));
    return context.workspace().capacity();
  };
  Counts lengths(256, 1);
  lengths[100] = 4000;
  const std::size_t padded = std::size_t{4000} * 256 * 4 * 64 * sizeof(float);
  const std::size_t packed = std::size_t{4255} * 4 * 64 * sizeof(float);
  CHECK(capacity(lengths) <= packed);
  CHECK(capacity(lengths) < padded / 100);
}
