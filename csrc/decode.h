// Attention of few queries over many cached tokens: memory bound, so every K and V row is read once for all query heads
// that share it. It serves any shape; prefill.h does better where there are many queries.
#pragma once

#include <cstdint>

#include "attention.h"

namespace kv {

// A span of keys of one sequence for some of its queries and KV heads. Its rows are [num_heads][num_queries][group]; the
// state of a row is what an online softmax carries along: the largest score, the sum of weights, the weighted values.
struct DecodeItem {
  int64_t sequence;
  int64_t first_query, num_queries;  // packed
  int first_head, num_heads;         // KV heads
  int64_t first_key, stop_key;       // positions
  int64_t partial;                   // number of its first row in `partials`; -1: writes `out` and `lse` itself
};

// Spans of the same rows, to be merged: `num_pieces` states, `piece_rows` apart, from row `item.partial` on.
struct DecodeMerge {
  DecodeItem item;  // one KV head
  int64_t num_pieces, piece_rows;
};

// Items of the same KV heads and first key. Before `shared_stop` (a multiple of DECODE_TILE, or their first key) they see
// the same keys in the same blocks: those are read once for the rows of all of them. Each row has the bits it would have
// alone.
struct DecodeShare {
  const DecodeItem* items;
  int64_t count, shared_stop;
};

constexpr int DECODE_TILE = 128;  // keys scored at once; tiles begin at multiples of it, wherever a span begins

struct DecodeKernels {
  int64_t (*state_floats)(const AttentionCall& call);  // one row's share of `partials`
  void (*run)(const AttentionCall& call, const DecodeItem& item, float* partials);
  void (*run_shared)(const AttentionCall& call, const DecodeShare& share, float* partials);
  void (*merge)(const AttentionCall& call, const DecodeMerge& merge, const float* partials);
};

KV_DECLARE(DecodeKernels, decode_kernels)

float* thread_scratch(int64_t floats);  // of the calling thread, aligned to 64 bytes; valid until its next call

}  // namespace kv
