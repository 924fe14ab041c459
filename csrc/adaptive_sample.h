// The pages that are watched to learn hazards: one key in 16, while they are cached and, as ghosts, long after. Explained
// in src/kvpager/eviction/adaptive_sample.py.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "adaptive_hazards.h"
#include "adaptive_table.h"

namespace kv::adaptive {

class ReuseSample {
 public:
  explicit ReuseSample(int64_t num_blocks) : items_(4 * num_blocks + 4096), of_key_(items_.size()) {
    first_.fill(NOWHERE);
    last_.fill(NOWHERE);
    for (auto item = static_cast<int32_t>(items_.size()) - 1; item >= 0; --item) free_.push_back(item);
  }

  static bool has(uint64_t key) { return mix(key ^ 0x5bd1e995) >> 60 == 0; }

  // The page came back; NOWHERE if it was not watched. It is watched again once it is let go.
  void came_back(uint64_t key, Hazards& hazards, double now) {
    const int32_t at = has(key) ? of_key_.find(key) : NOWHERE;
    if (at == NOWHERE || items_[at].bin == NOWHERE) return;
    Item& item = items_[at];
    const double age = now > item.since ? now - item.since : 0.0;
    hazards.watched(item.node, item.seen, age);
    hazards.used_again(item.node, age);
    unlink(at);
  }

  // Watches a page from `age` on, last used at `since`.
  void watch(uint64_t key, int node, double since, double age, Hazards& hazards, double now) {
    if (!has(key)) return;
    int32_t at = of_key_.find(key);
    if (at == NOWHERE) {
      if (free_.empty()) forget_oldest(hazards, now);
      if (free_.empty()) return;
      at = free_.back();
      free_.pop_back();
      of_key_.set(key, at);
      items_[at].key = key;
    } else if (items_[at].bin != NOWHERE) {
      unlink(at);
    }
    items_[at].node = node;
    items_[at].since = since;
    items_[at].seen = age;
    link(at, bin_of(age));
  }

  // A page left that was never let go: nothing is known of it.
  void drop_live(uint64_t key) {
    const int32_t at = has(key) ? of_key_.find(key) : NOWHERE;
    if (at != NOWHERE && items_[at].bin == NOWHERE) forget(at);
  }

  // Notes for up to `steps` pages that they have been watched into the next bins.
  void advance(int steps, Hazards& hazards, double now) {
    for (; steps > 0; --steps) {
      const int32_t at = first_[turn_];
      const int bin = at == NOWHERE ? turn_ : bin_of(now - items_[at].since);
      if (bin <= turn_) {
        turn_ = (turn_ + 1) % NUM_BINS;
        continue;
      }
      note(at, hazards, now);
      unlink(at);
      link(at, bin);
    }
  }

 private:
  struct Item {
    uint64_t key;
    double since, seen;  // last use; the age up to which its watching has been noted
    int32_t node, bin = NOWHERE, before, after;  // bin: the list it is in; none while it is live
  };

  void note(int32_t at, Hazards& hazards, double now) {
    Item& item = items_[at];
    const double age = now - item.since;
    hazards.watched(item.node, item.seen, age);
    if (age > item.seen) item.seen = age;
  }

  void forget_oldest(Hazards& hazards, double now) {
    for (int bin = NUM_BINS - 1; bin >= 0; --bin)
      if (const int32_t at = first_[bin]; at != NOWHERE) {
        note(at, hazards, now);
        unlink(at);
        forget(at);
        return;
      }
  }

  void forget(int32_t at) {
    of_key_.erase(items_[at].key);
    free_.push_back(at);
  }

  void link(int32_t at, int bin) {
    Item& item = items_[at];
    item.bin = bin;
    item.after = NOWHERE;
    item.before = last_[bin];
    (item.before == NOWHERE ? first_[bin] : items_[item.before].after) = at;
    last_[bin] = at;
  }

  void unlink(int32_t at) {
    Item& item = items_[at];
    (item.before == NOWHERE ? first_[item.bin] : items_[item.before].after) = item.after;
    (item.after == NOWHERE ? last_[item.bin] : items_[item.after].before) = item.before;
    item.bin = NOWHERE;
  }

  std::vector<Item> items_;
  std::vector<int32_t> free_;
  KeyTable of_key_;
  std::array<int32_t, NUM_BINS> first_, last_;  // by bin of age, in the order in which they came into it
  int turn_ = 0;
};

// The last full page of each of the latest requests: what a next turn of the same conversation begins with.
class Conversations {
 public:
  struct Turn {
    uint64_t key;
    double when;
    int32_t turns;  // 0: forgotten
  };

  explicit Conversations(int64_t num_blocks) : ring_(4 * num_blocks + 4096), at_(ring_.size()) {}

  void prefetch(uint64_t key) const { at_.prefetch(key); }

  const Turn* find(uint64_t key) const {
    const int32_t at = at_.find(key);
    return at == NOWHERE ? nullptr : &ring_[at];
  }

  void remember(uint64_t key, int32_t turns, double now) {
    forget(key);
    Turn& oldest = ring_[next_];
    if (oldest.turns) at_.erase(oldest.key);
    oldest = {key, now, turns};
    at_.set(key, next_);
    next_ = (next_ + 1) % static_cast<int32_t>(ring_.size());
  }

  void forget(uint64_t key) {
    const int32_t at = at_.find(key);
    if (at == NOWHERE) return;
    ring_[at].turns = 0;
    at_.erase(key);
  }

 private:
  std::vector<Turn> ring_;
  KeyTable at_;
  int32_t next_ = 0;
};

}  // namespace kv::adaptive
