// Blocks by rank, the lowest first: eviction/ranked_leaves.py, natively and for ranks of 64 bits.
#pragma once

#include <cstdint>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kv {

// Ties go to the lower block number. What it keeps is as long as the highest block that was ever offered.
class RankedLeaves {
 public:
  static constexpr int64_t MOST_BLOCKS = int64_t{1} << 32;

  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  bool contains(int64_t block) const { return block >= 0 && block < num_known() && rank_of_[block] != NOT_OFFERED; }

  // `block` has this rank, at least 0, now; offered before or not.
  void offer(int64_t block, int64_t rank) {
    if (block < 0 || block >= MOST_BLOCKS || rank < 0) throw std::out_of_range("a block or a rank is out of range");
    if (block >= num_known()) rank_of_.resize(block + 1, NOT_OFFERED);
    int64_t& known = rank_of_[block];
    if (known == rank) return;
    if (known != NOT_OFFERED) order_.erase({known, block});
    order_.emplace_hint(order_.end(), rank, block);  // what was used last mostly goes last
    known = rank;
  }
  // Not offered now, whether it was or not.
  void withdraw(int64_t block) {
    if (!contains(block)) return;
    const std::pair<int64_t, int64_t> entry{rank_of_[block], block};
    if (*order_.begin() == entry) order_.erase(order_.begin());  // what leaves mostly is the lowest
    else order_.erase(entry);
    rank_of_[block] = NOT_OFFERED;
  }
  // REQUIRES: some are offered.
  int64_t lowest() const { return order_.begin()->second; }

  void move(int64_t source, int64_t target) {
    if (!contains(source)) return;
    const int64_t rank = rank_of_[source];
    withdraw(source);
    offer(target, rank);
  }
  const std::set<std::pair<int64_t, int64_t>>& order() const { return order_; }

 private:
  static constexpr int64_t NOT_OFFERED = -1;
  int64_t num_known() const { return static_cast<int64_t>(rank_of_.size()); }

  std::set<std::pair<int64_t, int64_t>> order_;  // (rank, block)
  std::vector<int64_t> rank_of_;                 // by block
};

}  // namespace kv
