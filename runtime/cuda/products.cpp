// Products by cuBLASLt, which is loaded when the first is asked for: programs that need none
// neither need the library nor map its hundreds of megabytes.
//
// Row-major d [m, n] = a [m, k] b [n, k]^T is, column-major, d' [n, m] = b' [k, n]^T a' [k, m]. The
// algorithm is chosen by (n, k, types, pitches) alone, at one representative m, among those that
// sum over k in one piece: a row then has the same bits whatever rows stand beside it.
//
// Transposed, d [m, n] = a [k, m]^T b [k, n] is d' [n, m] = b' [n, k] a' [m, k]^T. Here k is the
// side that varies from batch to batch, and the algorithm is chosen by all else. Sums may be split
// over k, into a workspace whose parts are added in a fixed order: never by atomic additions.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <compare>
#include <map>
#include <memory>

#include "packrnn/runtime/cuda/check.hpp"
#include "packrnn/runtime/cuda/handles.hpp"
#include "packrnn/runtime/error.hpp"

#define PACKRNN_TEXT_OF(x) #x
#define PACKRNN_TEXT(x) PACKRNN_TEXT_OF(x)

namespace packrnn::gpu {
namespace {

constexpr const char* kLibrary = "libcublasLt.so." PACKRNN_TEXT(CUBLAS_VER_MAJOR);
constexpr std::size_t kWorkspace = std::size_t{32} << 20;
/// The varying side (m, or k of a transposed product) that the heuristic is asked for, and those
/// that the algorithm must also be able to do.
constexpr std::uint64_t kRows = 2048, kTerms = 16384;
constexpr std::array<std::uint64_t, 5> kOthers{1, 2, 7, 100, std::uint64_t{1} << 20};
constexpr int kCandidates = 64;

struct Library {
// NOLINTBEGIN(bugprone-macro-parentheses): `name` names a member.
#define PACKRNN_FUNCTION(name) \
  decltype(&::cublasLt##name) name = load<decltype(name)>("cublasLt" #name)
  // NOLINTEND(bugprone-macro-parentheses)
  template <class Pointer>
  Pointer load(const char* name) {
    void* const function = dlsym(handle, name);
    if (function == nullptr)
      throw Unsupported(fmt::format("{} has no {}: it is of another version", kLibrary, name));
    return reinterpret_cast<Pointer>(function);
  }

  void* handle = open();
  PACKRNN_FUNCTION(Create);
  PACKRNN_FUNCTION(Destroy);
  PACKRNN_FUNCTION(GetStatusString);
  PACKRNN_FUNCTION(MatmulDescCreate);
  PACKRNN_FUNCTION(MatmulDescDestroy);
  PACKRNN_FUNCTION(MatmulDescSetAttribute);
  PACKRNN_FUNCTION(MatrixLayoutCreate);
  PACKRNN_FUNCTION(MatrixLayoutDestroy);
  PACKRNN_FUNCTION(MatrixLayoutSetAttribute);
  PACKRNN_FUNCTION(MatmulPreferenceCreate);
  PACKRNN_FUNCTION(MatmulPreferenceDestroy);
  PACKRNN_FUNCTION(MatmulPreferenceSetAttribute);
  PACKRNN_FUNCTION(MatmulAlgoGetHeuristic);
  PACKRNN_FUNCTION(MatmulAlgoConfigGetAttribute);
  PACKRNN_FUNCTION(MatmulAlgoCheck);
  PACKRNN_FUNCTION(Matmul);
#undef PACKRNN_FUNCTION

  static void* open() {
    void* const handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* const why = dlerror();
      throw Unsupported(
          fmt::format("layers of 16-bit or tf32 need cuBLASLt, but {} cannot be loaded ({}): "
                      "install it, or name its folder in LD_LIBRARY_PATH",
                      kLibrary, why == nullptr ? "no reason given" : why));
    }
    return handle;
  }
  static const Library& get() {
    static const Library library;  // never closed; a failure is tried again
    return library;
  }
};

void check(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text =
      fmt::format("cuBLASLt, {}: {}", what, Library::get().GetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory("out of memory: " + text);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
    throw Unsupported(text);
  throw DeviceError(text);
}

struct Delete {
  void operator()(cublasLtContext* p) const noexcept { Library::get().Destroy(p); }
  void operator()(cublasLtMatmulDescOpaque_t* p) const noexcept {
    Library::get().MatmulDescDestroy(p);
  }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const noexcept {
    Library::get().MatrixLayoutDestroy(p);
  }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const noexcept {
    Library::get().MatmulPreferenceDestroy(p);
  }
};
using Handle = std::unique_ptr<cublasLtContext, Delete>;
using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Delete>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Delete>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Delete>;

template <class T>
void set(const Desc& desc, cublasLtMatmulDescAttributes_t which, const T& value) {
  check(Library::get().MatmulDescSetAttribute(desc.get(), which, &value, sizeof(value)),
        "describing a product");
}
template <class T>
void set(const Layout& layout, cublasLtMatrixLayoutAttribute_t which, const T& value) {
  check(Library::get().MatrixLayoutSetAttribute(layout.get(), which, &value, sizeof(value)),
        "describing a matrix");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t which, const T& value) {
  check(Library::get().MatmulPreferenceSetAttribute(preference.get(), which, &value, sizeof(value)),
        "asking for an algorithm");
}

cudaDataType_t type_of(Dtype dtype) noexcept {
  if (dtype == Dtype::f16) return CUDA_R_16F;
  return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

Layout make_layout(Dtype dtype, std::uint64_t rows, std::uint64_t columns, std::int64_t pitch) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(Library::get().MatrixLayoutCreate(&layout, type_of(dtype), rows, columns, pitch),
        "describing a matrix");
  return Layout(layout);
}

/// The largest power of two, up to 16, that every row's address is a multiple of. The same for
/// every row of a tensor that starts at a multiple of 16, so it does not depend on the first row.
std::uint32_t alignment_of(const void* data, std::int64_t pitch, Dtype dtype) noexcept {
  const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(data) |
                             static_cast<std::uint64_t>(pitch) * size_of(dtype) | 16U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

struct Key {
  std::int64_t m, n, k;  // 0: the side that varies
  std::int64_t lda, ldb, ldd;
  Dtype in, out;
  bool accumulate, bias;
  std::uint32_t align_a, align_b, align_d;

  // clang-tidy 14 takes the 0 of a defaulted comparison for a pointer.
  auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct Plan {
  Desc desc;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  bool transposed = false;

  void set_varying(std::uint64_t count) const {
    set(a, CUBLASLT_MATRIX_LAYOUT_COLS, count);
    set(transposed ? b : d, CUBLASLT_MATRIX_LAYOUT_COLS, count);
  }
};

/// Whether the same bits come out of every run and, unless sums may be split, for every row
/// whatever rows stand beside it.
bool sums_in_order(const cublasLtMatmulAlgo_t& algorithm, bool may_split) {
  const Library& library = Library::get();
  std::int32_t pieces = 0;
  std::uint32_t reduction = 0;
  std::size_t written = 0;
  check(library.MatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &pieces,
                                             sizeof(pieces), &written),
        "reading an algorithm");
  check(library.MatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &reduction, sizeof(reduction), &written),
        "reading an algorithm");
  if (may_split && reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return true;
  return (pieces == 0 || pieces == 1) && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

bool does_all(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) {
  for (const std::uint64_t count : kOthers) {
    plan.set_varying(count);
    cublasLtMatmulHeuristicResult_t result{};
    if (Library::get().MatmulAlgoCheck(handle, plan.desc.get(), plan.b.get(), plan.a.get(),
                                       plan.d.get(), plan.d.get(), &algorithm,
                                       &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > kWorkspace)
      return false;
  }
  return true;
}

cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, const Plan& plan, const Key& key) {
  const Library& library = Library::get();
  cublasLtMatmulPreference_t made = nullptr;
  check(library.MatmulPreferenceCreate(&made), "asking for an algorithm");
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(plan.transposed ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                 : CUBLASLT_REDUCTION_SCHEME_NONE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_d);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_d);
  plan.set_varying(plan.transposed ? kTerms : kRows);
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int found = 0;
  check(library.MatmulAlgoGetHeuristic(handle, plan.desc.get(), plan.b.get(), plan.a.get(),
                                       plan.d.get(), plan.d.get(), preference.get(), kCandidates,
                                       candidates.data(), &found),
        fmt::format("choosing an algorithm for m {}, n {}, k {}", key.m, key.n, key.k));
  for (int i = 0; i < found; ++i) {
    const auto& candidate = candidates[static_cast<std::size_t>(i)];
    if (candidate.state == CUBLAS_STATUS_SUCCESS &&
        sums_in_order(candidate.algo, plan.transposed) && does_all(handle, plan, candidate.algo))
      return candidate.algo;
  }
  throw Unsupported(fmt::format(
      "cuBLASLt has {} algorithms for a product with m {}, n {}, k {} (0: any), but none that sums "
      "in a fixed order",
      found, key.m, key.n, key.k));
}

Plan make_plan(cublasLtHandle_t handle, const Key& key) {
  const Library& library = Library::get();
  const auto m = static_cast<std::uint64_t>(key.m), n = static_cast<std::uint64_t>(key.n),
             k = static_cast<std::uint64_t>(key.k);
  Plan plan;
  plan.transposed = key.k == 0;
  cublasLtMatmulDesc_t desc = nullptr;
  check(library.MatmulDescCreate(
            &desc, key.in == Dtype::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
            CUDA_R_32F),
        "describing a product");
  plan.desc.reset(desc);
  set(plan.desc, plan.transposed ? CUBLASLT_MATMUL_DESC_TRANSB : CUBLASLT_MATMUL_DESC_TRANSA,
      CUBLAS_OP_T);
  if (key.bias) {
    set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
  }
  if (plan.transposed) {
    plan.b = make_layout(key.in, n, kTerms, key.ldb);
    plan.a = make_layout(key.in, m, kTerms, key.lda);
    plan.d = make_layout(key.out, n, m, key.ldd);
  } else {
    plan.b = make_layout(key.in, k, n, key.ldb);
    plan.a = make_layout(key.in, k, kRows, key.lda);
    plan.d = make_layout(key.out, n, kRows, key.ldd);
  }
  plan.algorithm = choose(handle, plan, key);
  return plan;
}

}  // namespace

struct ProductsHandle {
  Stream stream = nullptr;
  Handle handle;
  void* workspace = nullptr;
  Stream workspace_stream = nullptr;
  std::map<Key, Plan> plans;
};

Products create_products(Stream stream) {
  const Library& library = Library::get();
  const Current current(stream->device);
  auto products = std::make_unique<ProductsHandle>();
  products->stream = stream;
  cublasLtHandle_t handle = nullptr;
  check(library.Create(&handle), "opening it");
  products->handle.reset(handle);
  products->workspace_stream = capturing(stream) ? nullptr : stream;
  products->workspace = allocate(stream->device, kWorkspace, products->workspace_stream);
  return products.release();
}

void destroy(Products products) noexcept {
  if (products == nullptr) return;
  release(products->stream->device, products->workspace, products->workspace_stream);
  quietly(products->stream->device, [&] {
    delete products;  // cuBLASLt wants its device current
    return cudaSuccess;
  });
}

void multiply(Products products, const Product& product, const void* a, const void* b,
              const float* bias, void* d) {
  const Product p = checked(product, bias != nullptr);
  if (p.m == 0 || p.n == 0) return;
  const Current current(products->stream->device);
  const Key key{p.transposed ? p.m : 0,
                p.n,
                p.transposed ? 0 : p.k,
                p.lda,
                p.ldb,
                p.ldd,
                p.in,
                p.out,
                p.accumulate,
                bias != nullptr,
                alignment_of(a, p.lda, p.in),
                alignment_of(b, p.ldb, p.in),
                alignment_of(d, p.ldd, p.out)};
  auto found = products->plans.find(key);
  if (found == products->plans.end())
    found = products->plans.emplace(key, make_plan(products->handle.get(), key)).first;
  const Plan& plan = found->second;
  plan.set_varying(static_cast<std::uint64_t>(p.transposed ? p.k : p.m));
  if (bias != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, beta = p.accumulate ? 1.0F : 0.0F;
  check(
      Library::get().Matmul(products->handle.get(), plan.desc.get(), &one, b, plan.b.get(), a,
                            plan.a.get(), &beta, d, plan.d.get(), d, plan.d.get(), &plan.algorithm,
                            products->workspace, kWorkspace, products->stream->stream),
      fmt::format("a product of m {}, n {}, k {}", p.m, p.n, p.k));
}

}  // namespace packrnn::gpu
