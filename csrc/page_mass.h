// How much of the attention of some queries falls on each page, from their keys alone: values are never read.
//
// One pass: for every page and query row the largest score and the sum of exp(score - largest) are noted, two floats
// instead of page_size scores. When all pages are through, their log-sum-exp normalises them.
#pragma once

#include <cstdint>

#include "cache_layer.h"
#include "isa.h"

namespace kv {

// Page i lies at addresses[i]: [kv_heads][K | V][page_size][head_dim], and its first slot has position positions[i].
// Query t has position start + t * step; it sees key positions k with k <= its own, and k > its own - window if there is one.
struct MassCall {
  const int64_t* addresses;  // [num_pages]
  const int64_t* positions;  // [num_pages]
  int64_t num_pages;
  int kv_heads, head_dim, page_size;
  DType dtype;  // of the keys: f32, bf16 or f16
  Rows q;       // [num_queries, query_heads, head_dim]
  int query_heads;
  int64_t num_queries, start, step, window;  // window 0: none
  float scale, softcap;                      // softcap 0: none

  int64_t rows() const { return num_queries * (query_heads / kv_heads); }  // of one KV head: [num_queries][group]
  int64_t page_stride() const { return (num_pages + 15) / 16 * 16; }       // floats from one row of pages to the next
};

struct MassKernels {
  int64_t (*query_floats)(const MassCall& call);  // of one row
  void (*read_queries)(const MassCall& call, int head, float* q);
  // Pages first .. stop - 1 of one KV head: `tops` and `totals` [rows][page_stride].
  void (*score)(const MassCall& call, int head, int64_t first, int64_t stop, const float* q, float* tops, float* totals);
  // The mass of each page, summed over the rows, each of which has 1 in all (0 where it sees nothing). `masses`
  // [page_stride]; overwrites `totals`.
  void (*sum_rows)(const MassCall& call, const float* tops, float* totals, float* masses);
};

KV_DECLARE(MassKernels, mass_kernels)

}  // namespace kv
