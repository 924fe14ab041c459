// One group's step of paged attention: what the sequences are, checked once, and the work items every layer is cut into.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "decode.h"

namespace kv {

struct WorkItems {
  int group;  // query heads per KV head
  int kv_heads;
  int64_t queries_per_prefill;  // 0: no prefill kernel
  std::vector<PrefillItem> prefill;
  std::vector<DecodeItem> decode;
  std::vector<DecodeMerge> merges;
  int64_t partial_rows = 0;
};

class AttentionPlan {
 public:
  // Copies its arguments. `pages` empty: the list of a sequence holds every page its queries see, from the first one on.
  // Throws std::invalid_argument naming the argument.
  AttentionPlan(std::vector<int64_t> query_offsets, std::vector<int64_t> starts, std::vector<int64_t> table_offsets,
                std::vector<int32_t> blocks, std::vector<int32_t> pages, bool has_pages, int64_t window,
                int64_t page_size, int64_t num_blocks);

  int64_t num_tokens() const { return query_offsets_.back(); }

  // Throws std::invalid_argument where the layer is none of the group's.
  void check(const CacheLayer& layer) const;

  // REQUIRES: check(call.cache); q, out, lse and sinks of the right shapes. `items` from items_for(call).
  void run(AttentionCall call, const WorkItems& items) const;
  std::shared_ptr<const WorkItems> items_for(AttentionCall call);  // not from several threads at once

 private:
  Pages view() const;
  WorkItems cut(int group, int kv_heads, int64_t queries_per_prefill) const;

  std::vector<int64_t> query_offsets_, starts_, table_offsets_, first_pages_;
  std::vector<int32_t> blocks_, pages_;
  bool has_pages_;
  int64_t window_, page_size_, num_blocks_;
  std::shared_ptr<const WorkItems> items_;
};

}  // namespace kv
