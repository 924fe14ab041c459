#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "attention_plan.h"
#include "attention_segments.h"
#include "rows_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;

template <class T>
std::vector<T> read_array(const char* name, const Array& array) {
  const std::string argument = name;
  if (array.dtype() != nb::dtype<T>())
    throw nb::value_error((argument + ": expected int" + std::to_string(8 * sizeof(T))).c_str());
  if (array.ndim() != 1) throw nb::value_error((argument + ": expected one dimension").c_str());
  const auto* data = static_cast<const T*>(array.data());
  std::vector<T> values(array.shape(0));
  for (size_t i = 0; i < values.size(); ++i) values[i] = data[static_cast<int64_t>(i) * array.stride(0)];
  return values;
}

Rows read_rows(const char* name, uintptr_t address, int64_t token_stride, int64_t head_stride, const std::string& dtype) {
  const std::string argument = name;
  const DType type = parse_dtype(name, dtype);
  if (is_quantized(type)) throw nb::value_error((argument + ": dtype '" + dtype + "' is not supported").c_str());
  if (!address) throw nb::value_error((argument + ": rows need memory").c_str());
  return {reinterpret_cast<uint8_t*>(address), token_stride, head_stride, type};
}

std::vector<int32_t> read_pages(const std::optional<Array>& pages) {
  return pages ? read_array<int32_t>("pages", *pages) : std::vector<int32_t>();
}

AttentionCall read_call(const CacheLayer& layer, int query_heads, uintptr_t q, int64_t q_token_stride,
                        int64_t q_head_stride, const std::string& q_dtype, uintptr_t out, int64_t out_token_stride,
                        int64_t out_head_stride, const std::string& out_dtype, float scale, float softcap,
                        uintptr_t sinks, uintptr_t lse) {
  if (query_heads < 1 || query_heads % layer.kv_heads)
    throw nb::value_error("query_heads must be a multiple of the layer's kv_heads");
  return {nullptr,
          layer,
          read_rows("q", q, q_token_stride, q_head_stride, q_dtype),
          read_rows("out", out, out_token_stride, out_head_stride, out_dtype),
          reinterpret_cast<float*>(lse),
          reinterpret_cast<const float*>(sinks),
          scale,
          softcap,
          query_heads};
}

void bind_segments(nb::module_& m) {
  nb::class_<SegmentedAttention>(m, "SegmentedAttention",
                                 "Attention of one sequence, segment by segment: begin, stage and add, finish.")
      .def(
          "__init__",
          [](SegmentedAttention* self, int64_t start, int64_t num_queries, const Array& addresses, int64_t origin,
             const std::optional<Array>& pages, int64_t window, int64_t page_size) {
            const auto found = read_array<int64_t>("addresses", addresses);
            PagedSequences sequence{.query_offsets = {0, num_queries},
                                    .starts = {start},
                                    .table_offsets = {0, static_cast<int64_t>(found.size())},
                                    .pages = read_pages(pages),
                                    .has_pages = pages.has_value(),
                                    .window = window,
                                    .page_size = page_size};
            new (self) SegmentedAttention(std::move(sequence), found, origin);
          },
          nb::kw_only(), "start"_a, "num_queries"_a, "addresses"_a, "origin"_a, "pages"_a = nb::none(), "window"_a = 0,
          "page_size"_a,
          "addresses [entries] int64: of each page's first byte, 0 where it has to be staged; origin: of the pool's\n"
          "block 0; pages as in AttentionPlan.")
      .def_prop_ro("num_tokens", &SegmentedAttention::num_tokens)
      .def(
          "segments",
          [](const SegmentedAttention& self, int group) {
            std::vector<std::pair<int64_t, int64_t>> found;
            for (const Segment& each : self.segments(group)) found.emplace_back(each.first_entry, each.stop_entry);
            return found;
          },
          "group"_a, "Entries (first, stop) of each segment, where `group` query heads share a KV head.")
      .def(
          "begin",
          [](SegmentedAttention& self, const CacheLayer& layer, int query_heads, uintptr_t q, int64_t q_token_stride,
             int64_t q_head_stride, const std::string& q_dtype, uintptr_t out, int64_t out_token_stride,
             int64_t out_head_stride, const std::string& out_dtype, float scale, float softcap, uintptr_t sinks,
             uintptr_t lse) {
            self.begin(read_call(layer, query_heads, q, q_token_stride, q_head_stride, q_dtype, out, out_token_stride,
                                 out_head_stride, out_dtype, scale, softcap, sinks, lse));
          },
          "layer"_a, "query_heads"_a, "q"_a, "q_token_stride"_a, "q_head_stride"_a, "q_dtype"_a, "out"_a,
          "out_token_stride"_a, "out_head_stride"_a, "out_dtype"_a, "scale"_a, "softcap"_a = 0.0f, "sinks"_a = 0,
          "lse"_a = 0,
          "Begins a layer; arguments as in AttentionPlan.run. They stay alive until finish().")
      .def(
          "stage",
          [](SegmentedAttention& self, const Array& entries, const Array& addresses) {
            self.stage(read_array<int64_t>("entries", entries), read_array<int64_t>("addresses", addresses));
          },
          "entries"_a, "addresses"_a, "int64 [n]: where the layer's part of these pages lies, for the next add().")
      .def("add", &SegmentedAttention::add, nb::call_guard<nb::gil_scoped_release>(), "first"_a, "stop"_a,
           "part"_a = 0, "parts"_a = 1,
           "Attends to segments first .. stop-1; or does part `part` of it, if there are items to share out.")
      .def_prop_ro("num_items", &SegmentedAttention::num_items, "Of the layer that was begun; 0: few queries.")
      .def("finish", &SegmentedAttention::finish, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_attention(nb::module_& m) {
  nb::class_<AttentionPlan>(m, "AttentionPlan", "One group's step of paged attention, the same for every layer.")
      .def(
          "__init__",
          [](AttentionPlan* self, const Array& query_offsets, const Array& starts, const Array& table_offsets,
             const Array& blocks, const std::optional<Array>& pages, int64_t window, int64_t page_size,
             int64_t num_blocks) {
            PagedSequences sequences{.query_offsets = read_array<int64_t>("query_offsets", query_offsets),
                                     .starts = read_array<int64_t>("starts", starts),
                                     .table_offsets = read_array<int64_t>("table_offsets", table_offsets),
                                     .blocks = read_array<int32_t>("blocks", blocks),
                                     .pages = read_pages(pages),
                                     .has_pages = pages.has_value(),
                                     .window = window,
                                     .page_size = page_size};
            new (self) AttentionPlan(std::move(sequences), num_blocks);
          },
          nb::kw_only(), "query_offsets"_a, "starts"_a, "table_offsets"_a, "blocks"_a, "pages"_a = nb::none(),
          "window"_a = 0, "page_size"_a, "num_blocks"_a,
          "query_offsets [S+1] int64: the packed queries of each sequence; starts [S] int64: position of its first one;\n"
          "table_offsets [S+1] int64 into blocks [entries] int32; pages [entries] int32: the page each entry holds,\n"
          "any subset of a sequence's pages in order (None: all that its queries see, from the first one on).")
      .def_prop_ro("num_tokens", &AttentionPlan::num_tokens)
      .def(
          "run",
          [](AttentionPlan& self, const CacheLayer& layer, int query_heads, uintptr_t q, int64_t q_token_stride,
             int64_t q_head_stride, const std::string& q_dtype, uintptr_t out, int64_t out_token_stride,
             int64_t out_head_stride, const std::string& out_dtype, float scale, float softcap, uintptr_t sinks,
             uintptr_t lse) {
            self.check(layer);
            if (!self.num_tokens()) return;
            const AttentionCall call =
                read_call(layer, query_heads, q, q_token_stride, q_head_stride, q_dtype, out, out_token_stride,
                          out_head_stride, out_dtype, scale, softcap, sinks, lse);
            auto items = self.items_for(call);
            nb::gil_scoped_release release;
            self.run(call, std::move(items));
          },
          "layer"_a, "query_heads"_a, "q"_a, "q_token_stride"_a, "q_head_stride"_a, "q_dtype"_a, "out"_a,
          "out_token_stride"_a, "out_head_stride"_a, "out_dtype"_a, "scale"_a, "softcap"_a = 0.0f, "sinks"_a = 0,
          "lse"_a = 0,
          "Attends: q and out are addresses of [tokens, query_heads, head_dim], strides in elements, head_dim contiguous;\n"
          "sinks an address of float32 [query_heads], lse of float32 [tokens, query_heads] to be written; 0: none.");
  bind_segments(m);
}

}  // namespace kv
