// Attention of one query over a page list of its own for every KV head, by address: what selection leaves to be read.
#pragma once

#include <cstdint>

#include "attention.h"

namespace kv {

struct HeadPages {
  const int64_t* offsets;    // [kv_heads + 1] into `addresses`
  const int64_t* addresses;  // of the layer's part of each page, bytes; ascending pages
  int64_t last_tokens;       // that the last page of every list holds; the others are full
};

// `call.pages` and `call.cache.base` are not looked at; one token. Each list is attended to as if its pages followed one
// another, cut as AttentionPlan cuts a context: over all pages of a sequence the bits are those of the plan.
void attend_head_pages(AttentionCall call, const HeadPages& lists);

}  // namespace kv
