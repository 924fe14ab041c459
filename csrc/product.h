// Products of rows of activations with weights as models store them: out = x w^T + bias.
//
//   x [rows, inputs]     w [outputs, inputs]     bias [1, outputs] or null     out [rows, outputs]
//
// Sums are formed in fp32 and rounded once, to the dtype of `out`. Their order depends on the number of inputs alone,
// never on rows, outputs, threads, or on where a call is cut: a row's result has the same bits in every batch.
#pragma once

#include <cstdint>

#include "elementwise.h"
#include "isa.h"

namespace kv {

// Weights that the thread will most likely read next: asked for meanwhile, so that it need not wait for memory then.
struct NextWeights {
  const uint8_t* from = nullptr;
  int64_t bytes = 0;
};

struct ProductKernels {
  // x is first widened to fp32, each row into as many floats: in the order the product reads it, padded with zeros. That
  // order depends on the number of rows.
  int64_t (*widened_floats)(int64_t inputs, DType weights);
  // Rows begin to end of all rows of a product; row r goes to `to` + r * widened_floats. `to` is aligned to 64 bytes.
  void (*widen)(const Matrix& x, DType weights, int64_t begin, int64_t end, float* to);
  // Outputs begin to end of all rows. REQUIRES: w is f32 or bf16; bias and out have its dtype; out has as many rows as x.
  void (*run)(const float* widened, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin, int64_t end,
              NextWeights next);
};

KV_DECLARE(ProductKernels, product_kernels)

}  // namespace kv
