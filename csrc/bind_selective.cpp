#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "decode.h"
#include "digest.h"
#include "head_pages.h"
#include "ids_binding.h"
#include "rows_binding.h"
#include "select.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

constexpr int64_t PAGES_PER_THREAD = 64;  // heads of pages whose digests, or scores, are worth another thread

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

// One query: [query_heads, head_dim].
Rows read_query(const char* name, uintptr_t address, int64_t head_stride, const std::string& dtype) {
  const DType type = parse_dtype(name, dtype);
  require(!is_quantized(type), "q and out must be float32, bfloat16 or float16");
  require(address != 0, "q and out need memory");
  return {reinterpret_cast<uint8_t*>(address), 0, head_stride, type};
}

void check_heads(int query_heads, int kv_heads) {
  require(query_heads >= 1 && query_heads % kv_heads == 0, "query_heads must be a multiple of kv_heads");
}

void check_rows(const CacheLayer& layer) {
  require(!is_quantized(layer.dtype), "layer: its keys must be float32, bfloat16 or float16");
}

DigestTable make_table(uintptr_t address, int64_t num_tiles, int kv_heads, int head_dim) {
  require(address && address % 64 == 0, "address: a table needs memory aligned to 64 bytes");
  require(num_tiles >= 1 && kv_heads >= 1, "num_tiles and kv_heads must be at least 1");
  require(head_dim >= 1 && head_dim <= 256, "head_dim must be between 1 and 256");
  return {reinterpret_cast<uint8_t*>(address), num_tiles, kv_heads, head_dim};
}

void update_digests(const DigestTable& table, const CacheLayer& layer, const Ids& pages,
                    const Vector<const int64_t>& addresses) {
  check_rows(layer);
  require(layer.kv_heads == table.kv_heads && layer.head_dim == table.head_dim, "layer: its heads are not the table's");
  require(addresses.shape(0) == pages.shape(0), "addresses: expected one per page");
  const std::vector<int64_t> ids = read_ids("pages", pages, table.num_tiles * DIGEST_PAGES);
  const int64_t* where = addresses.data();
  const auto count = static_cast<int64_t>(ids.size());
  require(std::find(where, where + count, 0) == where + count, "addresses: a page without one");
  nb::gil_scoped_release release;
  const DigestKernels& kernels = KV_SELECT(digest_kernels);
#pragma omp parallel for num_threads(threads_for(count * table.kv_heads, PAGES_PER_THREAD)) schedule(static)
  for (int64_t i = 0; i < count; ++i)
    for (int head = 0; head < table.kv_heads; ++head)
      kernels.update(table,
                     {reinterpret_cast<const uint8_t*>(where[i]) + head * layer.head_stride, layer.slot_stride,
                      layer.dtype, layer.page_size},
                     ids[i], head);
}

ScoreCall score_call(const DigestTable& table, int query_heads, float softcap, float spread, float lean,
                     int64_t num_digests) {
  check_heads(query_heads, table.kv_heads);
  require(num_digests >= 0 && num_digests <= table.num_tiles * DIGEST_PAGES, "num_digests: the table has fewer pages");
  return {table, nullptr, query_heads, softcap, spread, lean, nullptr, nullptr, 0};
}

int64_t query_floats(const ScoreCall& call) { return call.query_heads * 2 * call.table.fours() * 4; }

void score_all(const ScoreCall& call, int64_t num_tiles, int threads) {
  const DigestKernels& kernels = KV_SELECT(digest_kernels);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t tile = 0; tile < num_tiles; ++tile) kernels.score(call, tile);
}

int threads_for_pages(const DigestTable& table, int64_t pages) {
  return threads_for(pages * table.kv_heads, 4 * PAGES_PER_THREAD);
}

void score_digests(const DigestTable& table, int query_heads, uintptr_t q, int64_t q_head_stride,
                   const std::string& q_dtype, float scale, float softcap, float spread, float lean,
                   const Matrix<float>& ranks, const Matrix<float>& estimates) {
  const auto stride = static_cast<int64_t>(ranks.shape(1));
  require(stride % DIGEST_PAGES == 0, "ranks: expected whole tiles of pages");
  require(ranks.shape(0) == static_cast<size_t>(query_heads) && estimates.shape(0) == ranks.shape(0) &&
              estimates.shape(1) == ranks.shape(1), "ranks and estimates: expected [query_heads, pages]");
  ScoreCall call = score_call(table, query_heads, softcap, spread, lean, stride);
  float* queries = thread_scratch(query_floats(call));
  KV_SELECT(digest_kernels).read_queries(call, read_query("q", q, q_head_stride, q_dtype), scale, queries);
  call.queries = queries;
  call.ranks = ranks.data();
  call.estimates = estimates.data();
  call.stride = stride;
  nb::gil_scoped_release release;
  score_all(call, stride / DIGEST_PAGES, threads_for_pages(table, stride));
}

void select_pages(const DigestTable& table, int query_heads, uintptr_t q, int64_t q_head_stride,
                  const std::string& q_dtype, float scale, float softcap, float spread, float lean,
                  int page_size, int64_t num_digests, int64_t num_sinks, int64_t first_recent, int64_t wanted,
                  float mass, const Matrix<int32_t>& pages, const Vector<int64_t>& counts,
                  const Vector<float>& log_skipped) {
  ScoreCall call = score_call(table, query_heads, softcap, spread, lean, num_digests);
  const Rows rows = read_query("q", q, q_head_stride, q_dtype);
  const auto num_pages = static_cast<int64_t>(pages.shape(1));
  require(pages.shape(0) == static_cast<size_t>(table.kv_heads) && counts.shape(0) == pages.shape(0),
          "pages and counts: expected [kv_heads, pages] and [kv_heads]");
  require(log_skipped.shape(0) == static_cast<size_t>(query_heads), "log_skipped: expected one per query head");
  require(num_digests <= num_pages, "num_digests: more than there are pages");
  require(num_sinks >= 0 && first_recent >= 0, "num_sinks and first_recent must not be negative");
  require(page_size >= 1, "page_size must be at least 1");
  require(mass >= 0 && mass <= 1, "mass must be between 0 and 1");
  const int64_t num_tiles = (num_digests + DIGEST_PAGES - 1) / DIGEST_PAGES, stride = num_tiles * DIGEST_PAGES;
  float* queries = thread_scratch(query_floats(call) + (2 * query_heads + table.kv_heads) * stride);
  float* ranks = queries + query_floats(call);
  float* estimates = ranks + query_heads * stride;
  KV_SELECT(digest_kernels).read_queries(call, rows, scale, queries);
  call.queries = queries;
  call.ranks = ranks;
  call.estimates = estimates;
  call.stride = stride;
  const SelectCall choice{ranks, estimates, stride, query_heads / table.kv_heads, num_digests, num_pages, num_sinks,
                          first_recent, std::min(wanted, num_pages), mass, page_size, estimates + query_heads * stride,
                          pages.data(), counts.data(), log_skipped.data()};
  nb::gil_scoped_release release;
  const int threads = threads_for_pages(table, num_digests);
  score_all(call, num_tiles, threads);
#pragma omp parallel for num_threads(std::min(threads, table.kv_heads)) schedule(dynamic, 1)
  for (int head = 0; head < table.kv_heads; ++head) KV_SELECT(select_kernels).select(choice, head);
}

void attend_lists(const CacheLayer& layer, const Vector<const int64_t>& offsets, const Vector<const int64_t>& addresses,
                  int64_t last_tokens, int query_heads, uintptr_t q, int64_t q_head_stride, const std::string& q_dtype,
                  uintptr_t out, int64_t out_head_stride, const std::string& out_dtype, float scale, float softcap,
                  uintptr_t sinks, uintptr_t lse) {
  check_rows(layer);
  check_heads(query_heads, layer.kv_heads);
  const auto heads = static_cast<size_t>(layer.kv_heads);
  const int64_t *from = offsets.data(), *where = addresses.data();
  require(offsets.shape(0) == heads + 1 && from[0] == 0 && std::is_sorted(from, from + heads + 1) &&
              from[heads] == static_cast<int64_t>(addresses.shape(0)),
          "offsets: expected kv_heads + 1, ascending from 0 to the number of addresses");
  require(std::find(where, where + from[heads], 0) == where + from[heads], "addresses: a page without one");
  require(last_tokens >= 1 && last_tokens <= layer.page_size, "last_tokens must be between 1 and the page size");
  const AttentionCall call{nullptr,
                           layer,
                           read_query("q", q, q_head_stride, q_dtype),
                           read_query("out", out, out_head_stride, out_dtype),
                           reinterpret_cast<float*>(lse),
                           reinterpret_cast<const float*>(sinks),
                           scale,
                           softcap,
                           query_heads};
  nb::gil_scoped_release release;
  attend_head_pages(call, {from, where, last_tokens});
}

}  // namespace

void bind_selective(nb::module_& m) {
  m.attr("DIGEST_PAGES") = DIGEST_PAGES;
  nb::class_<DigestTable>(m, "DigestTable", "The digests of one layer's pages; borrows the memory.")
      .def(
          "__init__",
          [](DigestTable* self, uintptr_t address, int64_t num_tiles, int kv_heads, int head_dim) {
            new (self) DigestTable(make_table(address, num_tiles, kv_heads, head_dim));
          },
          nb::kw_only(), "address"_a, "num_tiles"_a, "kv_heads"_a, "head_dim"_a)
      .def_prop_ro("record_bytes", &DigestTable::record_bytes, "Of one tile of DIGEST_PAGES pages and one head.");
  m.def("update_digests", &update_digests, "table"_a, "layer"_a, "pages"_a, "addresses"_a,
        "Writes the digests of `pages` [n], whose parts of `layer` lie at the byte addresses [n] int64.");
  m.def("score_digests", &score_digests, "table"_a, "query_heads"_a, "q"_a, "q_head_stride"_a, "q_dtype"_a, "scale"_a,
        "softcap"_a, "spread"_a, "lean"_a, "ranks"_a, "estimates"_a,
        "Writes float32 [query_heads, pages]: ranks, with a `lean` of 1 upper bounds of the scores, and estimated\n"
        "logs of the mean of their exp.");
  m.def("select_pages", &select_pages, "table"_a, "query_heads"_a, "q"_a, "q_head_stride"_a, "q_dtype"_a, "scale"_a,
        "softcap"_a, "spread"_a, "lean"_a, "page_size"_a, "num_digests"_a, "num_sinks"_a, "first_recent"_a,
        "wanted"_a, "mass"_a, "pages"_a, "counts"_a, "log_skipped"_a,
        "Scores the first `num_digests` pages and selects, see select.h. Writes pages int32 [kv_heads, all pages], of\n"
        "which the first counts[head] (int64) count, and log_skipped float32 [query_heads].");
  m.def("attend_head_pages", &attend_lists, "layer"_a, "offsets"_a, "addresses"_a, "last_tokens"_a, "query_heads"_a,
        "q"_a, "q_head_stride"_a, "q_dtype"_a, "out"_a, "out_head_stride"_a, "out_dtype"_a, "scale"_a,
        "softcap"_a = 0.0f, "sinks"_a = 0, "lse"_a = 0,
        "One query over a page list per KV head: offsets int64 [kv_heads + 1] into addresses int64 of the layer's parts;\n"
        "the last page of every list holds `last_tokens`. q and out are addresses of [query_heads, head_dim].");
}

}  // namespace kv
