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

// Into what a product is cut for several threads: pieces of each, so that all end at about the same time; and the outputs of
// which a piece has a multiple, and the most of it.
struct ProductPieces {
  int64_t per_thread, outputs, most;
};

struct ProductKernels {
  // Rows are first brought into the form in which the product reads them. It depends on the number of rows, their width
  // and the dtype of the weights, and takes so many floats.
  int64_t (*prepared_floats)(int64_t rows, int64_t inputs, DType weights);
  // Rows begin to end of all rows of a product, which are prepared in `to`. `to` is aligned to 64 bytes.
  void (*prepare)(const Matrix& x, DType weights, int64_t begin, int64_t end, float* to);
  ProductPieces (*pieces)(int64_t rows, DType weights);
  // Outputs begin to end of all rows. REQUIRES: w is f32 or bf16; bias and out have its dtype; out has as many rows as x.
  void (*run)(const float* prepared, const Matrix& w, const Matrix* bias, const Matrix& out, int64_t begin, int64_t end,
              NextWeights next);
  // Whether the next one can be had. Else: two products, and ElementwiseKernels' silu_mul.
  bool (*can_gate)(int64_t rows, const Matrix& w);
  // Outputs begin to end, multiples of `pieces`, of silu(x gate^T) * (x up^T), rounded as if it were done one after the
  // other, as `prepare` would have it for the product that reads it. w: gate, then up; the bias likewise.
  void (*run_gate)(const float* prepared, int64_t rows, const Matrix& w, const Matrix* bias, int64_t begin, int64_t end,
                   float* out);
};

KV_DECLARE(ProductKernels, product_kernels)

}  // namespace kv
