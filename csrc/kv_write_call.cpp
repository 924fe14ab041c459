#include "kv_write_call.h"

#include <stdexcept>

namespace kv {
namespace {

constexpr int64_t STREAM_BYTES = 128 << 10;  // from here on faster, attention that reads them back included

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

void check_rotary(const Rotary& rotary, int64_t tokens, int head_dim) {
  require(rotary.tokens == tokens, "rotary: the tables have another number of tokens than the rows");
  require(rotary.rotary_dim <= head_dim, "rotary: rotary_dim is larger than head_dim");
}

KVWriteCall kv_write_call(const CacheLayer& layer, const TokenSlots& slots, const Rows& k, const Rows& v,
                          const Rotary* rotary) {
  require(!is_quantized(layer.dtype) || slots.is_in_order,
          "slots: tokens of one page of a quantized layer must follow one another, in order");
  require(slots.num_blocks <= layer.num_blocks, "slots: made for more blocks than the layer has");
  require(slots.page_size == layer.page_size, "slots: made for another page_size than the layer's");
  if (rotary) check_rotary(*rotary, slots.tokens, layer.head_dim);
  require(k.data || !slots.tokens, "k: rows need memory");
  require(v.data || !slots.tokens, "v: rows need memory");
  const uint64_t places = reinterpret_cast<uintptr_t>(layer.base) | static_cast<uint64_t>(layer.block_stride) |
                          layer.head_stride | layer.half_stride | layer.slot_stride |
                          static_cast<uint64_t>(layer.head_dim * item_bytes(layer.dtype));
  const bool is_streamed = k.dtype == layer.dtype && kv_write_bytes(layer, slots) >= STREAM_BYTES && places % 64 == 0;
  return {layer, k, v, rotary, rotary ? KV_SELECT(rotary_kernels).rows(k.dtype, rotary->dtype) : nullptr, is_streamed};
}

}  // namespace kv
