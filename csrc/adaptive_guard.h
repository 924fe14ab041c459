// What LRU would hold and find with as many blocks, and how far the policy may depart from it. Explained in
// src/kvpager/eviction/adaptive_guard.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "adaptive_table.h"

namespace kv::adaptive {

constexpr double TOLERANCE = 0.004;     // of LRU's hits, that may be lost to trials
constexpr double SURE_GAIN = 0.05;      // over LRU, from which on no distance is kept to it
constexpr double LEAST_SHARE = 0.1;     // of the blocks, that credit may always amount to

// How far ahead of LRU the policy is, in pages found.
class Credit {
 public:
  void count(int64_t found, int64_t lru_found, int64_t pages, int64_t num_blocks) {
    found_ += static_cast<double>(found);
    lru_found_ += static_cast<double>(lru_found);
    pages_ += static_cast<double>(pages);
    if (pages_ > 8.0 * static_cast<double>(num_blocks) + 1000.0) {
      found_ *= 0.5;
      lru_found_ *= 0.5;
      pages_ *= 0.5;
    }
    ever_ += static_cast<double>(lru_found);
    const double share = lru_found_ / (pages_ + 1.0);
    price_ = lru_found_ > 0.0 ? share * std::max(0.0, 1.0 - (found_ / lru_found_ - 1.0) / SURE_GAIN) : 0.0;
    const double most = std::max(share, LEAST_SHARE) * static_cast<double>(num_blocks) + TOLERANCE * ever_;
    credit_ = std::min(most, credit_ + static_cast<double>(found) - static_cast<double>(lru_found) +
                                 TOLERANCE * static_cast<double>(lru_found));
  }

  bool is_spent() const { return credit_ < 0.0; }
  bool covers(int64_t departed) const { return static_cast<double>(departed) * price_ <= credit_; }

 private:
  double found_ = 0.0, lru_found_ = 0.0, pages_ = 0.0;  // lately
  double ever_ = 0.0;                                   // pages LRU found
  double price_ = 0.0, credit_ = 0.0;
};

// The keys LRU would hold, oldest first.
class ShadowLru {
 public:
  explicit ShadowLru(int64_t num_blocks) : entries_(num_blocks + 1), of_key_(num_blocks) {
    end().before = end().after = end_at();
  }

  void prefetch(uint64_t key) const { of_key_.prefetch(key); }
  int32_t find(uint64_t key) const { return of_key_.find(key); }
  int32_t block(int32_t entry) const { return entries_[entry].block; }
  uint64_t stamp(int32_t entry) const { return entries_[entry].stamp; }
  void set_block(int32_t entry, int32_t block) { entries_[entry].block = block; }

  // A key is used now. Returns the block of the one that LRU drops for it, or NOWHERE. `entry`: in and out.
  int32_t use(int32_t& entry, uint64_t key, int32_t block, uint64_t stamp) {
    int32_t dropped = NOWHERE;
    if (entry != NOWHERE) {
      unlink(entry);
    } else {
      if (used_ < end_at()) {
        entry = used_++;
      } else {
        entry = end().after;
        dropped = entries_[entry].block;
        of_key_.erase(entries_[entry].key);
        unlink(entry);
      }
      entries_[entry].key = key;
      of_key_.set(key, entry);
    }
    entries_[entry].block = block;
    entries_[entry].stamp = stamp;
    link(entry);
    return dropped;
  }

  // The oldest entry whose block `may_go`. Entries before the hand are known not to.
  template <class MayGo>
  int32_t oldest(MayGo may_go) {
    while (hand_ != end_at() && !(entries_[hand_].block != NOWHERE && may_go(entries_[hand_].block)))
      hand_ = entries_[hand_].after;
    return hand_ == end_at() ? NOWHERE : entries_[hand_].block;
  }

  void may_go_now(int32_t entry) {
    if (hand_ == end_at() || entries_[entry].stamp < entries_[hand_].stamp) hand_ = entry;
  }

 private:
  struct Entry {
    uint64_t key = 0, stamp = 0;
    int32_t block = NOWHERE, before = 0, after = 0;
  };

  int32_t end_at() const { return static_cast<int32_t>(entries_.size()) - 1; }
  Entry& end() { return entries_.back(); }

  void unlink(int32_t at) {
    if (hand_ == at) hand_ = entries_[at].after;
    entries_[entries_[at].before].after = entries_[at].after;
    entries_[entries_[at].after].before = entries_[at].before;
  }

  void link(int32_t at) {
    entries_[at].before = end().before;
    entries_[at].after = end_at();
    entries_[end().before].after = at;
    end().before = at;
  }

  std::vector<Entry> entries_;  // the last one is the end of the list
  KeyTable of_key_;
  int32_t used_ = 0;
  int32_t hand_ = end_at();
};

}  // namespace kv::adaptive
