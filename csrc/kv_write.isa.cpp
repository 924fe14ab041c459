#include "kv_write.h"

#include "store.h"
#include "stream.h"

namespace kv::KV_ISA {
namespace {

constexpr int MAX_ROW_BYTES = 256 * 4;

using CopyRow = void (*)(uint8_t* out, const uint8_t* in, int dim);

template <int ITEM_BYTES, bool STREAMED>
void copy_row(uint8_t* out, const uint8_t* in, int dim) {
  const int bytes = dim * ITEM_BYTES;
  if constexpr (STREAMED) {
    for (int at = 0; at < bytes; at += KV_VBYTES) stream(out + at, load_as<vi>(in + at));
  } else {
    int at = 0;
    for (; at + KV_VBYTES <= bytes; at += KV_VBYTES) {
      const vi v = load_as<vi>(in + at);
      std::memcpy(out + at, &v, sizeof v);
    }
    if (at < bytes) std::memcpy(out + at, in + at, bytes - at);
  }
}

template <DType FROM, DType TO>
void convert_row(uint8_t* out, const uint8_t* in, int dim) {
  int i = 0;
  for (; i + VL <= dim; i += VL)
    Storing<TO>::store(out + i * item_bytes(TO), Stored<FROM>::load(in + i * item_bytes(FROM)));
  if (i < dim) store_part<TO>(out + i * item_bytes(TO), load_part<FROM>(in + i * item_bytes(FROM), dim - i), dim - i);
}

template <DType FROM>
CopyRow convert_to(DType to) {
  return to == DType::f32    ? convert_row<FROM, DType::f32>
         : to == DType::bf16 ? convert_row<FROM, DType::bf16>
                             : convert_row<FROM, DType::f16>;
}

CopyRow converting_row(DType from, DType to) {
  return from == DType::f32    ? convert_to<DType::f32>(to)
         : from == DType::bf16 ? convert_to<DType::bf16>(to)
                               : convert_to<DType::f16>(to);
}

struct Identity {
  inline const uint8_t* operator()(const uint8_t* row, int64_t) const { return row; }
};

struct Rotated {  // a row of K in its own dtype, in a buffer
  const Rotary& tables;
  RotateRows rotate;
  int head_dim, item;
  uint8_t* buffer;

  inline const uint8_t* operator()(const uint8_t* row, int64_t token) const {
    const int64_t at = token * tables.token_stride * item_bytes(tables.dtype);
    rotate(buffer, row, tables.cos + at, tables.sin + at, tables.rotary_dim / 2, 1, 0);
    const int done = tables.rotary_dim * item;
    if (done < head_dim * item) std::memcpy(buffer + done, row + done, head_dim * item - done);
    return buffer;
  }
};

// One half (K or V) of one run. Rows are read in the order in which they lie in memory.
template <class Copy, class Change>
inline void write_half(const KVWriteCall& call, const Rows& rows, int half, const TokenRun& run, Copy copy,
                       const Change& change) {
  const CacheLayer& cache = call.cache;
  const int item = item_bytes(rows.dtype);
  const int64_t token_bytes = rows.token_stride * item, head_bytes = rows.head_stride * item;
  uint8_t* out = cache.base + run.block * cache.block_stride + half * cache.half_stride + run.slot * cache.slot_stride;
  const uint8_t* in = rows.data + run.first * token_bytes;
  for (int i = 0; i < run.count; ++i)
    for (int head = 0; head < cache.kv_heads; ++head)
      copy(out + head * cache.head_stride + i * cache.slot_stride,
           change(in + i * token_bytes + head * head_bytes, run.first + i), cache.head_dim);
}

template <class Copy>
inline void write_runs(const KVWriteCall& call, const TokenRun* runs, int64_t num_runs, Copy copy) {
  uint8_t buffer[MAX_ROW_BYTES] __attribute__((aligned(64)));
  for (int64_t i = 0; i < num_runs; ++i) {
    if (call.rotary) {
      const Rotated rotated{*call.rotary, call.rotate, call.cache.head_dim, item_bytes(call.k.dtype), buffer};
      write_half(call, call.k, 0, runs[i], copy, rotated);
    } else {
      write_half(call, call.k, 0, runs[i], copy, Identity{});
    }
    write_half(call, call.v, 1, runs[i], copy, Identity{});
  }
}

template <int ITEM_BYTES>
void copy_runs(const KVWriteCall& call, const TokenRun* runs, int64_t num_runs) {
  if (call.is_streamed)
    write_runs(call, runs, num_runs, [](auto... row) { copy_row<ITEM_BYTES, true>(row...); });
  else
    write_runs(call, runs, num_runs, [](auto... row) { copy_row<ITEM_BYTES, false>(row...); });
}

void write(const KVWriteCall& call, const TokenRun* runs, int64_t num_runs) {
  if (call.k.dtype != call.cache.dtype)
    write_runs(call, runs, num_runs, converting_row(call.k.dtype, call.cache.dtype));
  else if (call.cache.dtype == DType::f32)
    copy_runs<4>(call, runs, num_runs);
  else
    copy_runs<2>(call, runs, num_runs);
  if (call.is_streamed) stream_fence();
}

}  // namespace

extern const KVWriteKernels kv_write_kernels;
const KVWriteKernels kv_write_kernels = {write};

}  // namespace kv::KV_ISA
