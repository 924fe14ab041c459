// Digests of pages: for every page and KV head of a layer the centre of its keys in each channel, their mean, and the
// radius, how far the farthest of them lies from it. So for every key k of the page   q.k <= q.centre + |q|.radius   (a
// bound as that of Quest, Tang et al., ICML 2024, from smallest and largest values), and q.centre is the mean of q.k.
// One byte each, with a scale of their own per page and head; the radius covers what rounding the centre and itself
// leaves, so the bound holds for the codes.
//
// Codes lie in tiles of 16 pages, channels by fours, so that a vector holds pages and no sum crosses its lanes:
//
//   record(tile, head) := centres int8 [dim / 4][16 pages][4] | radii uint8 [dim / 4][16][4] | scales float [2][16]
//   table              := records [tiles][kv_heads]
#pragma once

#include <cstdint>

#include "cache_layer.h"
#include "isa.h"

namespace kv {

constexpr int DIGEST_PAGES = 16;  // of a tile

struct DigestTable {
  uint8_t* data;  // aligned to 64 bytes
  int64_t num_tiles;
  int kv_heads, head_dim;

  int64_t fours() const { return (head_dim + 3) / 4; }
  int64_t half_bytes() const { return fours() * 4 * DIGEST_PAGES; }
  int64_t record_bytes() const { return 2 * half_bytes() + 2 * DIGEST_PAGES * static_cast<int64_t>(sizeof(float)); }
  uint8_t* record(int64_t tile, int head) const { return data + (tile * kv_heads + head) * record_bytes(); }
};

struct PageKeys {  // the keys of one page and KV head
  const uint8_t* rows;
  int64_t slot_stride;  // bytes
  DType dtype;          // f32, bf16 or f16
  int page_size;
};

struct ScoreCall {
  DigestTable table;
  const float* queries;  // [query_heads][2][4 * fours]: scaled, and their magnitudes; zero behind head_dim
  int query_heads;
  float softcap;  // 0: none
  float spread;   // estimate = q.centre + spread * (|q|.radius)^2: the log of the mean of exp(q.k) over the page, about
  float lean;        // rank = q.centre + lean * |q|.radius: with 1 the upper bound
  float* ranks;      // [query_heads][stride]
  float* estimates;  // the same
  int64_t stride;    // at least 16 * num_tiles
};

struct DigestKernels {
  void (*update)(const DigestTable& table, const PageKeys& keys, int64_t page, int head);
  void (*read_queries)(const ScoreCall& call, const Rows& q, float scale, float* queries);
  void (*score)(const ScoreCall& call, int64_t tile);  // of all heads
};

KV_DECLARE(DigestKernels, digest_kernels)

}  // namespace kv
