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
  const int32_t* blocks;         // [entries] or null
  const int64_t* places;         // [entries] bytes, where there are no blocks
  const int32_t* pages;          // [entries] or null
  const int64_t* first_pages;    // [S]
  int64_t window;                // 0: none

  int64_t place(int64_t entry, int64_t block_stride) const {  // bytes from the layer's base to its part of the page
    return blocks ? blocks[entry] * block_stride : places[entry];
  }
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

// The part of an item that meets some slots of the page list, where these are not all in memory at once. The spans of an
// item follow one another and cut tiles nowhere, so that it does not matter how many there are.
struct PrefillSpan {
  int64_t first_slot, stop_slot;  // of the page list: multiples of 64, or its end
  float* state;                   // of the item, state_floats() aligned to 64 bytes: carried from span to span
  bool is_first, is_last;         // the first one clears the state, the last one writes `out` and `lse`
};

struct PrefillKernels {
  int64_t (*queries_per_item)(const AttentionCall& call);
  int64_t (*state_floats)(const AttentionCall& call, const PrefillItem& item);
  // Called by one thread; keeps its own scratch. `span` null: all slots.
  void (*run)(const AttentionCall& call, const PrefillItem& item, const PrefillSpan* span);
};

KV_DECLARE(PrefillKernels, prefill_kernels)

}  // namespace kv
