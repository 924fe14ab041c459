// What a decoder layer does between its matrix products, on rows of activations: norms and gated SiLU (for the rotary
// embedding see rotary.h).
//
// Every operation rounds to the rows' dtype where a chain of separate tensor operations would, so that the results are
// those of the plain modules: norms in fp32, then rounded, then times the weight; SiLU rounded before the product.
// Sums are formed in one fixed order, whatever the instruction set.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "isa.h"

namespace kv {

struct Matrix {  // columns are contiguous
  uint8_t* data;
  int64_t rows, columns, row_stride;  // elements
  DType dtype;                        // f32, bf16 or f16

  uint8_t* row(int64_t r) const { return data + r * row_stride * item_bytes(dtype); }
};

struct NormCall {
  Matrix x;             // [rows, parts * width]: each part is normed on its own
  const Matrix* added;  // null, or like x: x += added first, and x keeps the sum
  Matrix weight;        // [1, width]
  Matrix out;           // like x; may be x
  float epsilon;
};

struct ElementwiseKernels {  // for rows begin to end
  void (*rms_norm)(const NormCall& call, int64_t begin, int64_t end);
  // out [rows, n] = silu(first half) * second half of gate_up [rows, 2 n]
  void (*silu_mul)(const Matrix& gate_up, const Matrix& out, int64_t begin, int64_t end);
};

KV_DECLARE(ElementwiseKernels, elementwise_kernels)

}  // namespace kv
