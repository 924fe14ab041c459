// Rotary position embedding of rows, in the half-split convention (Llama's `rotate_half`): element i < half of a row turns
// together with element i + half, where half = rotary_dim / 2; elements from rotary_dim on stay as they are.
//
//   out[i]        = x[i]        * cos[i]        - x[i + half] * sin[i]
//   out[i + half] = x[i + half] * cos[i + half] + x[i]        * sin[i + half]
//
// Products and sum are rounded one by one, never fused, to the type of x and the tables if these are the same and to f32
// otherwise; then the result is rounded to the type of x. That is what torch computes for
// `x * cos + rotate_half(x) * sin`, bit by bit.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "isa.h"

namespace kv {

struct Rotary {  // tables [tokens, rotary_dim], cos and sin alike; rows of token t use row t
  const uint8_t *cos, *sin;
  int64_t token_stride;  // elements
  int64_t tokens;
  int rotary_dim;
  DType dtype;  // f32, bf16 or f16
};

// `count` rows of one token, `apart` bytes from one to the next; `cos` and `sin` point at the token's row of the tables. `out`
// may be `x`.
using RotateRows = void (*)(uint8_t* out, const uint8_t* x, const uint8_t* cos, const uint8_t* sin, int half, int count,
                            int64_t apart);

struct RotaryKernels {
  RotateRows (*rows)(DType x, DType tables);
};

KV_DECLARE(RotaryKernels, rotary_kernels)

}  // namespace kv
