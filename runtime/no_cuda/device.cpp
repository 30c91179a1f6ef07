// Stands in for cuda/ in a build without CUDA: there is no device, and so nothing to ask of one.
#include "packrnn/runtime/device.hpp"

#include "packrnn/runtime/error.hpp"
#include "packrnn/runtime/gpu.hpp"

namespace packrnn::gpu {
namespace {

[[noreturn]] void unsupported() {
  throw Unsupported("a GPU was asked for: " + Device::cuda_status());
}

}  // namespace

int device_count() noexcept { return 0; }
std::string finding() { return "CUDA: built without it"; }
const Properties& properties(int /*device*/) { unsupported(); }

Stream create_stream(int /*device*/) { unsupported(); }
Stream adopt_stream(int /*device*/, void* /*native*/) { unsupported(); }
void destroy(Stream /*stream*/) noexcept {}
int device_of(Stream /*stream*/) noexcept { return -1; }
void* native(Stream /*stream*/) noexcept { return nullptr; }
void wait(Stream /*stream*/) { unsupported(); }

Event create_event(int /*device*/, bool /*timed*/) { unsupported(); }
void destroy(Event /*event*/) noexcept {}
void record(Event /*event*/, Stream /*stream*/) { unsupported(); }
void wait(Stream /*stream*/, Event /*event*/) { unsupported(); }
bool done(Event /*event*/) { unsupported(); }
void wait(Event /*event*/) { unsupported(); }
float elapsed_ms(Event /*from*/, Event /*to*/) { unsupported(); }

void* allocate(int /*device*/, std::size_t /*bytes*/, Stream /*stream*/) { unsupported(); }
void release(int /*device*/, void* /*data*/, Stream /*stream*/) noexcept {}
void* allocate_pinned(std::size_t /*bytes*/) { unsupported(); }
void release_pinned(void* /*data*/) noexcept {}
void copy(void* /*target*/, const void* /*source*/, std::size_t /*bytes*/, Copy /*kind*/,
          Stream /*stream*/) {
  unsupported();
}
void copy_peer(void* /*target*/, int /*target_device*/, const void* /*source*/,
               int /*source_device*/, std::size_t /*bytes*/, Stream /*stream*/) {
  unsupported();
}
void fill(void* /*target*/, int /*byte*/, std::size_t /*bytes*/, Stream /*stream*/) {
  unsupported();
}

void begin_capture(Stream /*stream*/) { unsupported(); }
Graph end_capture(Stream /*stream*/) { unsupported(); }
bool capturing(Stream /*stream*/) noexcept { return false; }
void launch(Graph /*graph*/, Stream /*stream*/) { unsupported(); }
void destroy(Graph /*graph*/) noexcept {}

void launch(Stream /*stream*/, const char* /*name*/, const void* /*kernel*/,
            const LaunchShape& /*shape*/, void** /*arguments*/) {
  unsupported();
}
int resident_blocks(int /*device*/, const void* /*kernel*/, int /*block*/, std::size_t /*shared*/) {
  unsupported();
}
int resident_clusters(int /*device*/, const void* /*kernel*/, int /*block*/, std::size_t /*shared*/,
                      int /*cluster*/) {
  unsupported();
}

Products create_products(Stream /*stream*/) { unsupported(); }
void destroy(Products /*products*/) noexcept {}
void multiply(Products /*products*/, const Product& /*product*/, const void* /*a*/,
              const void* /*b*/, const float* /*bias*/, void* /*d*/) {
  unsupported();
}

void mark(void* /*data*/, std::size_t /*bytes*/, bool /*usable*/, Stream /*stream*/) noexcept {}
std::int64_t waits() noexcept { return 0; }

}  // namespace packrnn::gpu
