#include "kv_write_quantized.h"

#include "quantize.h"

namespace kv::KV_ISA {
namespace {

constexpr int MAX_ROW_BYTES = 256 * 4;

class Source {  // the new rows of one head and half, K rotated if the call says so
 public:
  Source(const KVWriteCall& call, int half, int head) : call_(call), rows_(half ? call.v : call.k), is_rotated_(!half && call.rotary) {
    item_ = item_bytes(rows_.dtype);
    data_ = rows_.data + head * rows_.head_stride * item_;
  }

  const uint8_t* operator()(int64_t token) {
    const uint8_t* row = data_ + token * rows_.token_stride * item_;
    if (!is_rotated_) return row;
    const Rotary& tables = *call_.rotary;
    const int64_t at = token * tables.token_stride * item_bytes(tables.dtype);
    call_.rotate(buffer_, row, tables.cos + at, tables.sin + at, tables.rotary_dim / 2, 1, 0);
    const int done = tables.rotary_dim * item_, rest = call_.cache.head_dim * item_ - done;
    if (rest) std::memcpy(buffer_ + done, row + done, rest);
    return buffer_;
  }

 private:
  const KVWriteCall& call_;
  const Rows& rows_;
  bool is_rotated_;
  int item_;
  const uint8_t* data_;
  uint8_t buffer_[MAX_ROW_BYTES] __attribute__((aligned(64)));
};

template <DType FROM, DType TO>
inline void scale_row(uint8_t* out, const uint8_t* in, int dim, float factor) {
  const vf factors = splat(factor);
  int i = 0;
  for (; i + VL <= dim; i += VL) Storing<TO>::store(out + i, Stored<FROM>::load(in + i * item_bytes(FROM)) * factors);
  if (i < dim) store_part<TO>(out + i, load_part<FROM>(in + i * item_bytes(FROM), dim - i) * factors, dim - i);
}

template <DType FROM, DType TO>
inline vi larger_in_row(vi largest, const uint8_t* in, int dim) {
  vi even = {}, odd = {};
  int i = 0;
  for (; i + 2 * VL <= dim; i += 2 * VL) {
    even = larger<TO>(even, Stored<FROM>::load(in + i * item_bytes(FROM)));
    odd = larger<TO>(odd, Stored<FROM>::load(in + (i + VL) * item_bytes(FROM)));
  }
  if (i + VL <= dim) {
    even = larger<TO>(even, Stored<FROM>::load(in + i * item_bytes(FROM)));
    i += VL;
  }
  if (i < dim) odd = larger<TO>(odd, load_part<FROM>(in + i * item_bytes(FROM), dim - i));
  even = odd > even ? odd : even;
  return even > largest ? even : largest;
}

// The runs begin .. end - 1 all lie in one page.
template <DType FROM, DType TO>
void write_page(const KVWriteCall& call, const TokenRun* begin, const TokenRun* end, int head, int half) {
  const CacheLayer& cache = call.cache;
  const int dim = cache.head_dim;
  Source source(call, half, head);
  vi magnitudes = {};
  for (const TokenRun* run = begin; run < end; ++run)
    for (int i = 0; i < run->count; ++i) magnitudes = larger_in_row<FROM, TO>(magnitudes, source(run->first + i), dim);

  uint8_t* scale_at = cache.scales + begin->block * cache.block_stride + (head * 2 + half) * sizeof(float);
  const int32_t before = begin->slot ? load_as<int32_t>(scale_at) : 0;
  const int32_t needed = needed_scale<TO>(largest_lane(magnitudes));
  const int32_t scale = needed > before ? needed : before;
  std::memcpy(scale_at, &scale, sizeof scale);

  uint8_t* rows = cache.base + begin->block * cache.block_stride + head * cache.head_stride + half * cache.half_stride;
  const bool is_nan = scale >= INFINITY_BITS;
  if (scale > before && !is_nan) {
    const float ratio = bits<float>(before) / bits<float>(scale);
    for (int slot = 0; slot < begin->slot; ++slot)
      scale_row<TO, TO>(rows + slot * cache.slot_stride, rows + slot * cache.slot_stride, dim, ratio);
  }
  const float inverse = is_nan ? 0.0f : 1.0f / bits<float>(scale);
  for (const TokenRun* run = begin; run < end; ++run)
    for (int i = 0; i < run->count; ++i) {
      uint8_t* out = rows + (run->slot + i) * cache.slot_stride;
      if (is_nan) std::memset(out, 0, dim);
      else scale_row<FROM, TO>(out, source(run->first + i), dim, inverse);
    }
}

using WritePage = void (*)(const KVWriteCall&, const TokenRun*, const TokenRun*, int, int);

template <DType FROM>
WritePage writing_to(DType to) {
  return to == DType::i8 ? write_page<FROM, DType::i8> : write_page<FROM, DType::f8e4m3>;
}

WritePage writing(DType from, DType to) {
  return from == DType::f32    ? writing_to<DType::f32>(to)
         : from == DType::bf16 ? writing_to<DType::bf16>(to)
                               : writing_to<DType::f16>(to);
}

void write(const KVWriteCall& call, const TokenSlots& slots, int64_t first, int64_t stop) {
  const WritePage write_page = writing(call.k.dtype, call.cache.dtype);
  const TokenRun *runs = slots.runs.data(), *last = runs + slots.runs.size();
  const TokenRun* begin = runs + first;
  while (first && begin < runs + stop && begin->block == begin[-1].block) ++begin;  // belongs to the piece before
  while (begin < runs + stop) {
    const TokenRun* end = begin + 1;
    while (end < last && end->block == begin->block) ++end;
    for (int head = 0; head < call.cache.kv_heads; ++head)
      for (int half = 0; half < 2; ++half) write_page(call, begin, end, head, half);
    begin = end;
  }
}

}  // namespace

extern const KVWriteQuantizedKernels kv_write_quantized_kernels;
const KVWriteQuantizedKernels kv_write_quantized_kernels = {write};

}  // namespace kv::KV_ISA
