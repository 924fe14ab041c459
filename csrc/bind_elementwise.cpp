#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "elementwise.h"
#include "rows_binding.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

// Fewer, and waking a second thread costs more than it saves; an item of a gated SiLU takes four times an item of a norm.
constexpr int64_t NORM_ITEMS = 1 << 16, SILU_ITEMS = 1 << 14;

template <class F>
void over_rows(int64_t rows, int64_t columns, int64_t least, F run) {
  const int threads = threads_for(rows * columns, least);
  nb::gil_scoped_release release;
  if (threads == 1) return run(0, rows);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; ++i) run(rows * i / threads, rows * (i + 1) / threads);
}

void check(bool is_right, const char* message) {
  if (!is_right) throw nb::value_error(message);
}

bool alike(const Matrix& a, const Matrix& b) { return a.rows == b.rows && a.columns == b.columns && a.dtype == b.dtype; }

}  // namespace

void bind_elementwise(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix", "Rows of activations or weights; borrows the memory.")
      .def(
          "__init__",
          [](Matrix* self, uintptr_t address, int64_t rows, int64_t columns, int64_t row_stride,
             const std::string& dtype) {
            check(rows >= 0, "rows must not be negative");
            check(columns >= 1, "columns must be at least 1");
            check(address || rows == 0, "address: rows need memory");
            check(row_stride >= columns || rows <= 1, "row_stride is shorter than a row");
            const DType type = parse_dtype("dtype", dtype);
            check(!is_quantized(type), "dtype must be float32, bfloat16 or float16");
            new (self) Matrix{reinterpret_cast<uint8_t*>(address), rows, columns, row_stride, type};
          },
          nb::kw_only(), "address"_a, "rows"_a, "columns"_a, "row_stride"_a, "dtype"_a, "row_stride in elements.");

  m.def(
      "rms_norm",
      [](const Matrix& x, const std::optional<Matrix>& added, const Matrix& weight, const Matrix& out, float epsilon) {
        check(alike(x, out), "out must have the shape and dtype of x");
        check(!added || alike(x, *added), "added must have the shape and dtype of x");
        check(weight.rows == 1 && weight.dtype == x.dtype, "weight must be one row of x's dtype");
        check(x.columns % weight.columns == 0, "weight: x's columns are no multiple of its length");
        const NormCall call{x, added ? &*added : nullptr, weight, out, epsilon};
        over_rows(x.rows, x.columns, NORM_ITEMS,
                  [&](int64_t a, int64_t b) { KV_SELECT(elementwise_kernels).rms_norm(call, a, b); });
      },
      "x"_a, "added"_a.none(), "weight"_a, "out"_a, "epsilon"_a,
      "out = x / sqrt(mean(x^2) + epsilon) * weight, for each part of a row as long as the weight; x += added first.");

  m.def(
      "silu_mul",
      [](const Matrix& gate_up, const Matrix& out) {
        check(gate_up.rows == out.rows && gate_up.dtype == out.dtype, "out must have the rows and the dtype of gate_up");
        check(gate_up.columns == 2 * out.columns, "out must have half the columns of gate_up");
        over_rows(out.rows, out.columns, SILU_ITEMS,
                  [&](int64_t a, int64_t b) { KV_SELECT(elementwise_kernels).silu_mul(gate_up, out, a, b); });
      },
      "gate_up"_a, "out"_a, "out = silu(gate) * up, where each row of gate_up is a gate and an up row.");
}

}  // namespace kv
