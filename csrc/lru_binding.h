// What the end of a sequence does to the order of eviction/lru.py: ranks of its cached pages, and the one that may go.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "items.h"
#include "ranked_leaves.h"

namespace kv {

// One policy, as long as its pool has the same size.
class LruBinding {
 public:
  LruBinding(nanobind::handle lru, int64_t num_blocks)
      : lru_(nanobind::borrow(lru)),
        leaves_(lru.attr("_leaves")),
        ranks_(lru.attr("ranks"), true, num_blocks),
        clock_(lru.attr("clock"), true, 1) {
    if (nanobind::isinstance<RankedLeaves>(leaves_)) offered_ = &nanobind::cast<RankedLeaves&>(leaves_);
  }

  bool is_of(nanobind::handle lru) const { return lru_.is(lru); }
  // Whether it keeps its leaves natively, as it does unless it was made while kernels were off.
  bool is_native() const { return offered_ != nullptr; }

  // Blocks that lie one before the other, `last` of them first, count from now on; the first may go if it `is_leaf`.
  // REQUIRES: is_native().
  void release(const int32_t* last, int64_t count, bool is_leaf) const {
    const int64_t now = clock_[0];
    for (int64_t i = 0; i < count; ++i) ranks_[last[-i]] = now + i;
    if (is_leaf) offered_->offer(*last, now);
    clock_[0] = now + count;
  }

 private:
  nanobind::object lru_, leaves_;
  RankedLeaves* offered_ = nullptr;
  Items<int64_t> ranks_, clock_;
};

}  // namespace kv
