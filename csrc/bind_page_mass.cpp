#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "page_mass.h"
#include "rows_binding.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

constexpr int64_t ITEM_BYTES = 1 << 17;  // of keys that are worth another item, or another thread

using Column = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Masses = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void check(bool is_right, const char* message) {
  if (!is_right) throw nb::value_error(message);
}

DType float_dtype(const char* argument, const std::string& name) {
  const DType dtype = parse_dtype(argument, name);
  if (is_quantized(dtype)) throw nb::value_error((std::string(argument) + ": must be a float type").c_str());
  return dtype;
}

void page_masses(const MassCall& call, float* out) {
  std::fill_n(out, call.kv_heads * call.num_pages, 0.0f);
  if (!call.num_pages || !call.num_queries) return;
  const MassKernels& kernels = KV_SELECT(mass_kernels);
  const int64_t stride = call.page_stride(), rows = call.rows(), floats = kernels.query_floats(call);
  const int64_t page_bytes = int64_t{1} * call.page_size * call.head_dim * item_bytes(call.dtype);
  const int64_t at_once = std::max<int64_t>(1, ITEM_BYTES / page_bytes);
  const int64_t spans = (call.num_pages + at_once - 1) / at_once;
  std::vector<float> q(call.kv_heads * rows * floats), masses(call.kv_heads * stride);
  std::vector<float> tops(call.kv_heads * rows * stride, -std::numeric_limits<float>::infinity());
  std::vector<float> totals(tops.size(), 0.0f);
  const int threads = threads_for(call.kv_heads * call.num_pages * page_bytes * std::max<int64_t>(1, rows / 8), ITEM_BYTES);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for
    for (int head = 0; head < call.kv_heads; ++head) kernels.read_queries(call, head, &q[head * rows * floats]);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t span = 0; span < spans; ++span)
      for (int head = 0; head < call.kv_heads; ++head) {
        const int64_t first = span * at_once, stop = std::min(first + at_once, call.num_pages), at = head * rows * stride;
        kernels.score(call, head, first, stop, &q[head * rows * floats], &tops[at], &totals[at]);
      }
#pragma omp for schedule(dynamic, 1)
    for (int head = 0; head < call.kv_heads; ++head) {
      const int64_t at = head * rows * stride;
      kernels.sum_rows(call, &tops[at], &totals[at], &masses[head * stride]);
      std::memcpy(out + head * call.num_pages, &masses[head * stride], call.num_pages * sizeof(float));
    }
  }
}

}  // namespace

void bind_page_mass(nb::module_& m) {
  m.def(
      "page_masses",
      [](const Column& addresses, const Column& positions, const Masses& out, int head_dim, int page_size,
         const std::string& dtype, int query_heads, uintptr_t q, int64_t q_token_stride, int64_t q_head_stride,
         const std::string& q_dtype, int64_t num_queries, int64_t start, int64_t step, float scale, float softcap,
         int64_t window) {
        const auto kv_heads = static_cast<int>(out.shape(0));
        const auto num_pages = static_cast<int64_t>(addresses.shape(0));
        check(positions.shape(0) == addresses.shape(0), "positions: expected one per page");
        check(static_cast<int64_t>(out.shape(1)) == num_pages, "out must be [kv_heads, pages]");
        check(kv_heads >= 1 && page_size >= 1, "kv_heads and page_size must be at least 1");
        check(head_dim >= 1 && head_dim <= 256, "head_dim must be between 1 and 256");
        check(query_heads >= 1 && query_heads % kv_heads == 0, "query_heads must be a multiple of kv_heads");
        check(num_queries >= 0 && start >= 0 && window >= 0, "num_queries, start and window must not be negative");
        check(step >= 1, "step must be at least 1");
        check(q || !num_queries, "q: rows need memory");
        check(std::all_of(addresses.data(), addresses.data() + num_pages, [](int64_t at) { return at != 0; }),
              "addresses: a page needs memory");
        const MassCall call{addresses.data(), positions.data(), num_pages, kv_heads, head_dim, page_size,
                            float_dtype("dtype", dtype),
                            {reinterpret_cast<uint8_t*>(q), q_token_stride, q_head_stride, float_dtype("q_dtype", q_dtype)},
                            query_heads, num_queries, start, step, window, scale, softcap};
        nb::gil_scoped_release release;
        page_masses(call, out.data());
      },
      nb::kw_only(), "addresses"_a, "positions"_a, "out"_a, "head_dim"_a, "page_size"_a, "dtype"_a, "query_heads"_a,
      "q"_a, "q_token_stride"_a, "q_head_stride"_a, "q_dtype"_a, "num_queries"_a, "start"_a, "step"_a = 1, "scale"_a,
      "softcap"_a = 0.0f, "window"_a = 0,
      "out float32 [kv_heads, pages]: attention mass of each page, summed over queries and the query heads of a KV head;\n"
      "each query row has 1 in all over the pages given. addresses [pages] int64 of pages as they lie in a block (one\n"
      "layer), positions [pages] int64 of their first slots; q an address of [num_queries, query_heads, head_dim],\n"
      "at positions start, start + step, ...");
}

}  // namespace kv
