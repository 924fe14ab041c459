// Blocks by rank, the lowest first: eviction/ranked_leaves.py, natively and for ranks of 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

namespace kv {

// A sorted list in runs of bounded length. Ties go to the lower block number.
class RankedLeaves {
 public:
  struct Entry {
    int64_t rank, block;
    bool operator<(const Entry& other) const { return rank != other.rank ? rank < other.rank : block < other.block; }
  };
  using Run = std::vector<Entry>;

  // Blocks below `num_blocks`, and above where such are offered.
  explicit RankedLeaves(int64_t num_blocks) : rank_of_(num_blocks, NOT_OFFERED) {
    runs_.reserve(16);
    runs_.emplace_back().reserve(MOST + 1);
  }

  int64_t size() const { return num_offered_; }
  bool contains(int64_t block) const { return block >= 0 && block < num_known() && rank_of_[block] != NOT_OFFERED; }
  const std::vector<Run>& runs() const { return runs_; }
  // REQUIRES: some are offered.
  int64_t lowest() const { return runs_.front().front().block; }

  // `block` has this rank now; offered before or not.
  void offer(int64_t block, int64_t rank) {
    if (block < 0 || block >= MOST_BLOCKS || rank == NOT_OFFERED)
      throw std::out_of_range("a block or a rank is out of range");
    if (block >= num_known()) rank_of_.resize(block + 1, NOT_OFFERED);
    const int64_t known = rank_of_[block];
    if (known == rank) return;
    if (known == NOT_OFFERED) ++num_offered_;
    else take_out({known, block});
    rank_of_[block] = rank;
    put_in({rank, block});
  }
  // Not offered now, whether it was or not.
  void withdraw(int64_t block) {
    if (!contains(block)) return;
    take_out({rank_of_[block], block});
    rank_of_[block] = NOT_OFFERED;
    --num_offered_;
  }
  void move(int64_t source, int64_t target) {
    if (!contains(source)) return;
    const int64_t rank = rank_of_[source];
    withdraw(source);
    offer(target, rank);
  }

 private:
  static constexpr int64_t NOT_OFFERED = std::numeric_limits<int64_t>::min(), MOST_BLOCKS = int64_t{1} << 32;
  static constexpr size_t MOST = 256;  // entries of a run: moving them costs less than finding the place
  int64_t num_known() const { return static_cast<int64_t>(rank_of_.size()); }

  // The run that has this entry, or would have it: the last one where it lies behind all.
  std::vector<Run>::iterator run_of(const Entry& entry) {
    return std::partition_point(runs_.begin(), runs_.end() - 1, [&](const Run& run) { return run.back() < entry; });
  }
  void put_in(const Entry& entry) {
    const bool is_last = runs_.back().empty() || runs_.back().back() < entry;  // as what was used last mostly is
    const auto run = is_last ? runs_.end() - 1 : run_of(entry);
    run->insert(is_last ? run->end() : std::lower_bound(run->begin(), run->end(), entry), entry);
    if (run->size() > MOST) split(run);
  }
  void take_out(const Entry& entry) {
    const auto run = run_of(entry);
    run->erase(std::lower_bound(run->begin(), run->end(), entry));
    if (run->empty() && runs_.size() > 1) runs_.erase(run);
  }
  // The run is too long. Where short ones have become many, all are laid out anew.
  void split(std::vector<Run>::iterator run) {
    if (runs_.size() * MOST <= static_cast<size_t>(8 * num_offered_)) {
      const auto middle = run->begin() + (run + 1 == runs_.end() ? MOST : MOST / 2);  // the last goes on growing
      Run behind(middle, run->end());
      run->erase(middle, run->end());
      runs_.insert(run + 1, std::move(behind));
      return;
    }
    Run all;
    for (const Run& each : runs_) all.insert(all.end(), each.begin(), each.end());
    runs_.clear();
    for (size_t at = 0; at < all.size(); at += MOST / 2)
      runs_.emplace_back(all.begin() + at, all.begin() + std::min(at + MOST / 2, all.size()));
  }

  std::vector<Run> runs_;  // at least one; none is empty but the only one
  std::vector<int64_t> rank_of_;  // by block
  int64_t num_offered_ = 0;
};

}  // namespace kv
