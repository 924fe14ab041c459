// One group's step of paged attention: what the sequences are, checked once, for every layer.
#pragma once

#include <memory>
#include <vector>

#include "attention_cut.h"

namespace kv {

class AttentionPlan {
 public:
  // Throws std::invalid_argument naming the argument.
  AttentionPlan(PagedSequences sequences, int64_t num_blocks);

  AttentionPlan(const AttentionPlan&) = delete;  // pages() points into it

  int64_t num_tokens() const { return sequences_.query_offsets.back(); }
  const Pages& pages() const { return pages_; }

  // Throws std::invalid_argument where the layer is none of the group's.
  void check(const CacheLayer& layer) const;

  // REQUIRES: check(call.cache); q, out, lse and sinks of the right shapes. `items` from items_for(call).
  void run(AttentionCall call, std::shared_ptr<const WorkItems> items) const;
  std::shared_ptr<const WorkItems> items_for(const AttentionCall& call) { return sequences_.items_for(call, items_); }

 private:
  PagedSequences sequences_;
  Pages pages_;
  int64_t num_blocks_;
  std::shared_ptr<const WorkItems> items_;
};

}  // namespace kv
