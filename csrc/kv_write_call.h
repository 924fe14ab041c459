// What a step writes into one layer, checked.
#pragma once

#include "kv_write.h"

namespace kv {

// Throws std::invalid_argument naming the argument. `rotary` null, or applied to K on the way. k and v borrow their memory.
KVWriteCall kv_write_call(const CacheLayer& layer, const TokenSlots& slots, const Rows& k, const Rows& v,
                          const Rotary* rotary);

inline int64_t kv_write_bytes(const CacheLayer& layer, const TokenSlots& slots) {
  return 2 * slots.tokens * layer.kv_heads * layer.head_dim * item_bytes(layer.dtype);
}

void check_rotary(const Rotary& rotary, int64_t tokens, int head_dim);  // throws like it

}  // namespace kv
