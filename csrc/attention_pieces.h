// One layer's attention as pieces that threads may compute in any order: `attend` for each of num_pieces(), and once all of
// these have ended, `merge` for each of num_merges(). A row's bits depend neither on the pieces nor on who computes them.
#pragma once

#include <memory>

#include "attention_cut.h"

namespace kv {

class AttentionPieces {
 public:
  // `threads`: as many as will share them: the heads of a sequence are given out apart where there are few sequences, and
  // sequences that read the same keys together are so in several parts.
  // REQUIRES: `call` is complete, its pages included, and `items` were cut for it.
  AttentionPieces(const AttentionCall& call, std::shared_ptr<const WorkItems> items, int threads);

  int64_t num_pieces() const { return num_prefill() + num_shares() * head_parts_ * item_parts_; }
  int64_t num_merges() const { return static_cast<int64_t>(items_->merges.size()); }
  int64_t partial_floats() const;  // memory that attend() leaves for merge(), aligned to 64 bytes

  void attend(int64_t piece, float* partials) const;
  void merge(int64_t number, float* partials) const;

 private:
  int64_t num_prefill() const { return static_cast<int64_t>(items_->prefill.size()); }
  int64_t num_shares() const { return static_cast<int64_t>(items_->shares.size()); }
  void attend_share(const ItemShare& share, int first_head, float* partials) const;

  AttentionCall call_;
  std::shared_ptr<const WorkItems> items_;
  int heads_at_once_, head_parts_;      // of the KV heads of a decode item
  int64_t items_at_once_, item_parts_;  // of a share
};

}  // namespace kv
