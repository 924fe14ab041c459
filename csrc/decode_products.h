// The products of a decode kernel: some rows' queries with the keys of a tile, and their weights with its values. A row's
// bits don't depend on the rows beside it, nor on how many keys are scored at once.
//
// All of it is bound by how fast products can be added. So a loop keeps ACCUMULATORS vectors of sums, which don't wait for
// one another, and reads whatever else it needs again and again: two loads a cycle are free, a sum in memory is not.
// Include only from *.isa.cpp.
#pragma once

#include <utility>

#include "decode_tile.h"
#include "lanes.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr int MAX_ROWS = VL < 8 ? 4 : VL < 16 ? 6 : 8;
constexpr int ACCUMULATORS = VL < 16 ? 12 : 24;  // vector registers that hold sums: at least two of each row

constexpr int REGISTERS = VL < 16 ? 15 : 31;     // of vectors, without one for a constant

struct Shape {
  int dim, padded;       // elements of a row; rounded up to whole vectors
  int64_t state;         // floats of a row's state: padded values, then a vector each of weight sums and of the largest score
};

inline Shape shape_of(const AttentionCall& call) {
  const int dim = call.cache.head_dim, padded = (dim + VL - 1) / VL * VL;
  return {dim, padded, padded + 2 * VL};
}

template <DType T>
inline vf load_half(const uint8_t* at, int half) {  // one of load_two's vectors
  if constexpr (T == DType::bf16) {
    const vu words = load_as<vu>(at);
    return bits<vf>(half ? words & 0xffff0000u : words << 16);
  } else {
    return Stored<T>::load(at + half * VL * sizeof(typename Stored<T>::item));
  }
}

// The lanes of sum[r * K + k] become scores[r * TILE + k].
template <int R, int K>
inline void add_up(vf* sum, float* scores) {
  constexpr int N = R < VL / K ? R : VL / K;  // rows whose sums fit in one vector
  const vf all = sums<VL / 2, N * K>(sum);
  float lanes[VL];
  std::memcpy(lanes, &all, sizeof all);
  for (int r = 0; r < N; ++r) std::memcpy(scores + r * TILE, lanes + r * K, K * sizeof(float));
  if constexpr (R > N) add_up<R - N, K>(sum + N * K, scores + N * TILE);
}

// 2 * VL elements further in sums of R rows for K keys each; `rows`: of the keys. What fits in registers beside the sums is
// read once, the rest as often as it is needed.
template <DType T, int R, int K>
inline void add_products(const uint8_t* const* rows, const float* q, int64_t q_stride, vf* sum) {
  if constexpr (R * K + 2 * K < REGISTERS) {
    vf key[K][2];
    for (int k = 0; k < K; ++k) load_two<T>(rows[k], key[k]);
    for (int half = 0; half < 2; ++half)
      for (int r = 0; r < R; ++r) {
        const vf query = load_as<vf>(q + r * q_stride + half * VL);
        for (int k = 0; k < K; ++k) sum[r * K + k] += query * key[k][half];
      }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    if constexpr (R < K) {
      vf query[R];
      for (int r = 0; r < R; ++r) query[r] = load_as<vf>(q + r * q_stride + half * VL);
      for (int k = 0; k < K; ++k) {
        const vf key = load_half<T>(rows[k], half);
        for (int r = 0; r < R; ++r) sum[r * K + k] += query[r] * key;
      }
    } else {
      vf key[K];
      for (int k = 0; k < K; ++k) key[k] = load_half<T>(rows[k], half);
      for (int r = 0; r < R; ++r) {
        const vf query = load_as<vf>(q + r * q_stride + half * VL);
        for (int k = 0; k < K; ++k) sum[r * K + k] += query * key[k];
      }
    }
  }
}

// Apart from their callers, which leave too few registers: a sum in memory halves the speed.
template <DType T, int R>
[[gnu::noinline]] void score(const uint8_t* keys, const Tile& tile, const Shape& shape, const float* q, float* scores,
                             Ahead ahead) {
  constexpr int K = power_of_two_in(ACCUMULATORS / R < VL ? ACCUMULATORS / R : VL);
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  for (int i = 0; i < tile.count; i += K) {
    const uint8_t* rows[K];
    for (int k = 0; k < K; ++k) rows[k] = keys + tile.row[i + k];
    for (int k = 0; k < K; ++k) ahead.fetch(i + k);
    vf sum[R * K] = {};
    int d = 0;
    for (; d + 2 * VL <= shape.dim; d += 2 * VL) {
      add_products<T, R, K>(rows, q + d, shape.padded, sum);
      for (int k = 0; k < K; ++k) rows[k] += 2 * VL * BYTES;
    }
    for (; d < shape.dim; d += VL)
      for (int k = 0; k < K; ++k) {
        const uint8_t* const at = keys + tile.row[i + k] + d * BYTES;
        const vf key = d + VL <= shape.dim ? Stored<T>::load(at) : load_part<T>(at, shape.dim - d);
        for (int r = 0; r < R; ++r) sum[r * K + k] += load_as<vf>(q + r * shape.padded + d) * key;
      }
    add_up<R, K>(sum, scores + i);
  }
}

template <DType T, int R, int N>  // N vectors of sums; `part`: 0, or the elements that count of the only one
[[gnu::noinline]] void weigh(const uint8_t* values, const Tile& tile, int part, const float* weights, const vf* shrink,
                             float* sums, int64_t state, Ahead ahead) {
  vf sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = load_as<vf>(sums + r * state + n * VL) * shrink[r];
  for (int i = 0; i < tile.count; ++i) {
    const uint8_t* row = values + tile.row[i];
    ahead.fetch(i);
    if constexpr (N == 1) {
      const vf value = part ? load_part<T>(row, part) : Stored<T>::load(row);
      for (int r = 0; r < R; ++r) sum[r][0] += splat(weights[r * TILE + i]) * value;
    } else {
      for (int n = 0; n < N; n += 2) {
        vf value[2];
        load_two<T>(row + n * VL * sizeof(typename Stored<T>::item), value);
        const float* weight = weights + i;
        if constexpr (R * N + R + 2 > REGISTERS) asm volatile("" : "+r"(weight));  // so it reads the weights again
        for (int r = 0; r < R; ++r)
          for (int half = 0; half < 2; ++half) sum[r][n + half] += splat(weight[r * TILE]) * value[half];
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) std::memcpy(sums + r * state + n * VL, &sum[r][n], sizeof(vf));
}

template <DType T, int R, int N>
void weigh_all(const uint8_t* values, const Tile& tile, const Shape& shape, int d, const float* weights,
               const vf* shrink, float* sums, Ahead ahead) {
  constexpr int BYTES = sizeof(typename Stored<T>::item);
  for (; d + N * VL <= shape.dim; d += N * VL, ahead.bytes = 0)
    weigh<T, R, N>(values + d * BYTES, tile, 0, weights, shrink, sums + d, shape.state, ahead);
  if constexpr (N > 1)
    weigh_all<T, R, N / 2>(values, tile, shape, d, weights, shrink, sums, ahead);
  else if (d < shape.dim)
    weigh<T, R, 1>(values + d * BYTES, tile, shape.dim - d, weights, shrink, sums + d, shape.state, ahead);
}

}  // namespace
}  // namespace kv::KV_ISA
