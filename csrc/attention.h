// Paged attention: what one call is given, and the work items it is cut into. Numbers are elements unless they say bytes.
//
//   sequence i      queries query_offsets[i] .. query_offsets[i+1] of the packed rows, at positions starts[i], +1, ...
//                   pages   table_offsets[i] .. table_offsets[i+1] of `blocks`; entry e holds page pages[e] (null: the
//                           first entry is page first_pages[i], and they follow one another)
//
// A query at position p sees key positions k with k <= p, and k > p - window if there is a window (0: none). Keys at or
// behind starts[i] + its query count are no tokens: their slots may hold anything, NaN included, and are never used.
#pragma once

#include <cstdint>

#include "cache_layer.h"
#include "isa.h"

namespace kv {

struct Pages {  // the sequences of a step, the same for every layer of a group
  int64_t num_sequences;
  const int64_t* query_offsets;  // [S + 1]
  const int64_t* starts;         // [S]
  const int64_t* table_offsets;  // [S + 1]
  const int32_t* blocks;         // [entries]
  const int32_t* pages;          // [entries] or null
  const int64_t* first_pages;    // [S]
  int64_t window;                // 0: none
};

struct AttentionCall {
  const Pages* pages;
  CacheLayer cache;
  Rows q;    // [tokens, query_heads, head_dim]
  Rows out;  // the same shape; f32 for a partial result
  float* lse;          // null, or [tokens, query_heads]: log of the sum of exp(score), natural; -inf where nothing is seen
  const float* sinks;  // null, or [query_heads]: a logit without a value
  float scale, softcap;  // softcap 0: none
  int query_heads;
};

// Many new tokens of one sequence: queries first_query .. first_query + num_queries (packed) of one KV head's group,
// over all keys they see, in one go. Writes `out` and `lse`.
struct PrefillItem {
  int64_t sequence;
  int64_t first_query, num_queries;
  int kv_head;
};

struct PrefillKernels {
  int64_t (*queries_per_item)(const AttentionCall& call);
  void (*run)(const AttentionCall& call, const PrefillItem& item);  // called by one thread; keeps its own scratch
};

KV_DECLARE(PrefillKernels, prefill_kernels)

}  // namespace kv
