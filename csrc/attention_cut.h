// The sequences of a step in one layer group, checked, and the work items that every layer of it is cut into.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention.h"
#include "attention_shares.h"
#include "decode.h"

namespace kv {

constexpr int64_t PIECE = 2048;  // slots: a long context is cut at multiples of it, whoever computes the pieces

struct WorkItems {
  int group;  // query heads per KV head
  int kv_heads;
  int64_t queries_per_prefill;  // 0: no prefill kernel
  std::vector<PrefillItem> prefill = {};
  std::vector<DecodeItem> decode = {};
  std::vector<ItemShare> shares = {};  // of `decode`: each item is in one
  std::vector<DecodeMerge> merges = {};
  int64_t partial_rows = 0;
};

// As Pages has them. `blocks` or `places` is empty. `pages` counts if has_pages: any subset of a sequence's pages; else
// the list of a sequence holds every page its queries see, from the first one on.
struct PagedSequences {
  std::vector<int64_t> query_offsets, starts, table_offsets, first_pages = {};
  std::vector<int32_t> blocks = {};
  std::vector<int64_t> places = {};
  std::vector<int32_t> pages = {};
  bool has_pages = false;
  int64_t window = 0, page_size = 0;

  void check();  // fills first_pages in; throws std::invalid_argument naming the argument
  Pages view() const;
  int64_t num_entries() const { return table_offsets.back(); }

  // Whether a sequence is cut over its context, for decode kernels, or over its queries, for prefill kernels.
  bool is_decode(int64_t sequence, int group) const;
  WorkItems cut(int group, int kv_heads, int64_t queries_per_prefill) const;

  // The items of a call, kept in `items` from call to call. Not from several threads at once.
  std::shared_ptr<const WorkItems> items_for(AttentionCall call, std::shared_ptr<const WorkItems>& items) const;

  // What a decode sequence is cut into, all KV heads each; at least one, empty where nothing is seen.
  std::vector<DecodeItem> pieces(int64_t sequence, int kv_heads) const;
};

void require(bool holds, const std::string& what);  // throws std::invalid_argument

}  // namespace kv
