// Which decode items read the same keys from the same blocks: sequences with a common beginning whose blocks are shared.
// Found by comparing page tables, once for all layers of a step. It changes who computes what, and no bit of it.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "decode.h"

namespace kv {

struct ItemShare {  // items first .. first + count - 1 of a list; shared_stop as in DecodeShare
  int64_t first, count, shared_stop;
};

// Shares that hold every item, those of several first; the items are put in their order. `items`: all KV heads each.
// `page_size` and `group` (query heads per KV head) as everywhere.
std::vector<ItemShare> find_shares(const Pages& pages, int64_t page_size, int group, std::vector<DecodeItem>& items);

}  // namespace kv
