#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "product.h"
#include "scratch.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

constexpr int64_t THREAD_PRODUCTS = 1 << 17;  // fewer, and waking another thread costs more than it saves
constexpr int64_t PREPARED_ALONE = 32;         // rows: as above

void check(bool is_right, const char* message) {
  if (!is_right) throw nb::value_error(message);
}

void product(const Matrix& x, const Matrix& w, const std::optional<Matrix>& bias, const Matrix& out) {
  check(w.dtype == DType::f32 || w.dtype == DType::bf16, "w must be float32 or bfloat16");
  check(x.dtype == w.dtype, "x must have the dtype of w");
  check(out.dtype == w.dtype, "out must have the dtype of w");
  check(x.columns == w.columns, "x must have as many columns as w");
  check(out.rows == x.rows, "out must have as many rows as x");
  check(out.columns == w.rows, "out must have a column for each row of w");
  check(!bias || (bias->rows == 1 && bias->columns == w.rows && bias->dtype == w.dtype),
        "bias must be one row of w's dtype, with a column for each row of w");
  const ProductKernels& kernels = KV_SELECT(product_kernels);
  const int threads = threads_for(x.rows * w.rows * w.columns, THREAD_PRODUCTS);
  nb::gil_scoped_release release;
  thread_local Floats buffer;
  float* prepared = buffer.grown(kernels.prepared_floats(x.rows, w.columns, w.dtype));
  const Matrix* added = bias ? &*bias : nullptr;
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1 && x.rows >= PREPARED_ALONE)
  for (int i = 0; i < threads; ++i)
    kernels.prepare(x, w.dtype, x.rows * i / threads, x.rows * (i + 1) / threads, prepared);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int i = 0; i < threads; ++i)
    kernels.run(prepared, w, added, out, w.rows * i / threads, w.rows * (i + 1) / threads, {});
}

}  // namespace

void bind_product(nb::module_& m) {
  m.def("product", &product, "x"_a, "w"_a, "bias"_a.none(), "out"_a,
        "out [rows, outputs] = x [rows, inputs] times w [outputs, inputs], transposed, plus bias [1, outputs].");
}

}  // namespace kv
