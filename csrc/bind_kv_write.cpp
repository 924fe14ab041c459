#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>

#include "ids_binding.h"
#include "kv_write_call.h"
#include "kv_write_quantized.h"
#include "rows_binding.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

constexpr int64_t BYTES_PER_THREAD = 1 << 20;  // a second thread takes longer to wake than a decode batch takes to write
constexpr int64_t RUNS_PER_PIECE = 8;

// Whether each page's runs follow one another; `sorted` are the same runs by block and slot.
bool are_in_order(const std::vector<TokenRun>& runs, const std::vector<TokenRun>& sorted) {
  int64_t changes = 0, pages = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    changes += runs[i].block != runs[i - 1].block;
    pages += sorted[i].block != sorted[i - 1].block;
    if (runs[i].block == runs[i - 1].block && runs[i].slot < runs[i - 1].slot) return false;
  }
  return changes == pages;
}

TokenSlots make_token_slots(const Ids& blocks, const Ids& slots, int64_t num_blocks, int page_size) {
  if (num_blocks < 1 || num_blocks > INT32_MAX) throw nb::value_error("num_blocks must be at least 1 and fit in int32");
  if (page_size < 1) throw nb::value_error("page_size must be at least 1");
  if (blocks.shape(0) != slots.shape(0)) throw nb::value_error("blocks and slots must be equally long");
  const std::vector<int64_t> block = read_ids("blocks", blocks, num_blocks), slot = read_ids("slots", slots, page_size);
  TokenSlots found{{}, static_cast<int64_t>(block.size()), num_blocks, page_size, true};
  for (int64_t t = 0; t < found.tokens; ++t) {
    TokenRun* last = found.runs.empty() ? nullptr : &found.runs.back();
    if (last && last->block == block[t] && last->slot + last->count == slot[t] && last->count < MAX_RUN)
      ++last->count;
    else
      found.runs.push_back({t, static_cast<int32_t>(block[t]), static_cast<int32_t>(slot[t]), 1});
  }
  std::vector<TokenRun> sorted = found.runs;
  std::sort(sorted.begin(), sorted.end(), [](const TokenRun& a, const TokenRun& b) {
    return a.block != b.block ? a.block < b.block : a.slot < b.slot;
  });
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i].block == sorted[i - 1].block && sorted[i].slot < sorted[i - 1].slot + sorted[i - 1].count)
      throw nb::value_error("blocks and slots name a slot twice");
  found.is_in_order = are_in_order(found.runs, sorted);
  return found;
}

DType parse_float(const char* argument, const std::string& name) {
  const DType dtype = parse_dtype(argument, name);
  if (is_quantized(dtype)) throw nb::value_error((std::string(argument) + ": rows must be float, not " + name).c_str());
  return dtype;
}

void kv_write(const CacheLayer& layer, const TokenSlots& slots, uintptr_t k, int64_t k_token_stride,
              int64_t k_head_stride, uintptr_t v, int64_t v_token_stride, int64_t v_head_stride,
              const std::string& dtype_name, const Rotary* rotary) {
  const DType dtype = parse_float("dtype", dtype_name);
  const KVWriteCall call = kv_write_call(layer, slots, {reinterpret_cast<uint8_t*>(k), k_token_stride, k_head_stride, dtype},
                                         {reinterpret_cast<uint8_t*>(v), v_token_stride, v_head_stride, dtype}, rotary);
  if (!slots.tokens) return;
  const auto write = KV_SELECT(kv_write_kernels).write;
  const auto num_runs = static_cast<int64_t>(slots.runs.size());
  const int threads = threads_for(kv_write_bytes(layer, slots), BYTES_PER_THREAD);
  nb::gil_scoped_release release;
  if (is_quantized(layer.dtype)) {
    kv_write_quantized(call, slots);
    return;
  }
  if (threads == 1) {
    write(call, slots.runs.data(), num_runs);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t first = 0; first < num_runs; first += RUNS_PER_PIECE)
    write(call, slots.runs.data() + first, std::min(RUNS_PER_PIECE, num_runs - first));
}

void rotate(const Rotary& rotary, int heads, int head_dim, uintptr_t x, int64_t x_token_stride, int64_t x_head_stride,
            uintptr_t out, int64_t out_token_stride, int64_t out_head_stride, const std::string& dtype_name) {
  const DType dtype = parse_float("dtype", dtype_name);
  if (heads < 1) throw nb::value_error("heads must be at least 1");
  if (head_dim < 1) throw nb::value_error("head_dim must be at least 1");
  check_rotary(rotary, rotary.tokens, head_dim);
  if (!rotary.tokens) return;
  if (!x) throw nb::value_error("x: rows need memory");
  if (!out) throw nb::value_error("out: rows need memory");
  const int64_t item = item_bytes(dtype), table_item = item_bytes(rotary.dtype);
  const int64_t done = rotary.rotary_dim * item, rest = head_dim * item - done;
  const RotateRows rotate_rows = KV_SELECT(rotary_kernels).rows(dtype, rotary.dtype);
  const int threads = threads_for(rotary.tokens * heads * head_dim * item, BYTES_PER_THREAD);
  nb::gil_scoped_release release;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t t = 0; t < rotary.tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const auto* from = reinterpret_cast<const uint8_t*>(x) + (t * x_token_stride + h * x_head_stride) * item;
      auto* to = reinterpret_cast<uint8_t*>(out) + (t * out_token_stride + h * out_head_stride) * item;
      const int64_t table = t * rotary.token_stride * table_item;
      rotate_rows(to, from, rotary.cos + table, rotary.sin + table, rotary.rotary_dim / 2, 1, 0);
      if (to != from && rest) std::memcpy(to + done, from + done, rest);
    }
}

}  // namespace

void bind_kv_write(nb::module_& m) {
  nb::class_<TokenSlots>(m, "TokenSlots", "The block and slot of each new token of a step, checked once.")
      .def(
          "__init__",
          [](TokenSlots* self, const Ids& blocks, const Ids& slots, int64_t num_blocks, int page_size) {
            new (self) TokenSlots(make_token_slots(blocks, slots, num_blocks, page_size));
          },
          "blocks"_a, "slots"_a, "num_blocks"_a, "page_size"_a)
      .def_ro("tokens", &TokenSlots::tokens);
  nb::class_<Rotary>(m, "Rotary", nb::dynamic_attr(),
                     "cos and sin of each new token of a step, [tokens, rotary_dim]; borrows the memory.")
      .def(
          "__init__",
          [](Rotary* self, uintptr_t cos, uintptr_t sin, int64_t token_stride, int64_t tokens, int rotary_dim,
             const std::string& dtype) {
            if (tokens < 0) throw nb::value_error("tokens must not be negative");
            if (rotary_dim < 2 || rotary_dim % 2) throw nb::value_error("rotary_dim must be even and at least 2");
            if (!cos && tokens) throw nb::value_error("cos: a table needs memory");
            if (!sin && tokens) throw nb::value_error("sin: a table needs memory");
            new (self) Rotary{reinterpret_cast<const uint8_t*>(cos), reinterpret_cast<const uint8_t*>(sin),
                              token_stride, tokens, rotary_dim, parse_float("dtype", dtype)};
          },
          nb::kw_only(), "cos"_a, "sin"_a, "token_stride"_a, "tokens"_a, "rotary_dim"_a, "dtype"_a)
      .def_ro("tokens", &Rotary::tokens)
      .def_ro("rotary_dim", &Rotary::rotary_dim);
  m.def("kv_write", &kv_write, "layer"_a, "slots"_a, "k"_a, "k_token_stride"_a, "k_head_stride"_a, "v"_a,
        "v_token_stride"_a, "v_head_stride"_a, "dtype"_a, "rotary"_a.none() = nb::none(),
        "Writes packed K and V rows (addresses; strides in elements) into their slots, K rotated if tables are given.");
  m.def("rotate", &rotate, "rotary"_a, "heads"_a, "head_dim"_a, "x"_a, "x_token_stride"_a, "x_head_stride"_a, "out"_a,
        "out_token_stride"_a, "out_head_stride"_a, "dtype"_a,
        "Rotates packed rows (addresses; strides in elements); `out` may be `x`.");
}

}  // namespace kv
