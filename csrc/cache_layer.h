// Where rows lie: one layer's cached rows in the blocks of the pool, and packed rows of activations.
//
//   packed rows     [tokens, heads, dim]; dim is contiguous, the other strides are free
//   cached rows     block b, KV head h, half (0 = K, 1 = V), slot s:
//                   base + b * block_stride + h * head_stride + half * half_stride + s * slot_stride  (bytes)
#pragma once

#include <cstdint>

#include "dtype.h"

namespace kv {

struct CacheLayer {
  uint8_t* base;  // of this layer in block 0
  int64_t block_stride, head_stride, half_stride, slot_stride;  // bytes
  uint8_t* scales;  // null, or float [kv_heads, 2] of this layer in block 0, again every block_stride bytes
  DType dtype;
  int64_t num_blocks;
  int kv_heads, head_dim, page_size;
};

struct Rows {
  uint8_t* data;
  int64_t token_stride, head_stride;  // elements
  DType dtype;                        // f32, bf16 or f16
};

}  // namespace kv
