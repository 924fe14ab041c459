// The adaptive eviction policy; src/kvpager/eviction/adaptive.py is the same in Python, explains it, and chooses the same
// victims. Knows no Python; ids are checked by its callers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "adaptive_guard.h"
#include "adaptive_hazards.h"
#include "adaptive_sample.h"
#include "adaptive_table.h"

namespace kv::adaptive {

constexpr int CANDIDATES = 64;            // evictable blocks that are compared for each victim
constexpr int64_t TRAINED = 1000;         // reuses seen before the policy departs from LRU
constexpr double PAGE_SECONDS = 1e-5;     // the least time a page takes, where the clock stands still
constexpr int MAX_TURNS = 250, MAX_USES = 65535;

struct Use {
  int64_t output_tokens;
  int stop;
  bool has_partial_tail;
};

struct History {
  double last_used;
  int uses, kind;
};

// A list of blocks with constant-time removal; each block knows its place by `place`.
template <class Block, int32_t Block::*place>
class Bag {
 public:
  explicit Bag(std::vector<Block>& blocks) : blocks_(blocks) {}
  int64_t size() const { return static_cast<int64_t>(held_.size()); }
  int32_t operator[](int64_t i) const { return held_[i]; }

  void add(int32_t block) {
    if (blocks_[block].*place != NOWHERE) return;
    blocks_[block].*place = static_cast<int32_t>(held_.size());
    held_.push_back(block);
  }

  void take_out(int32_t block) {
    int32_t& at = blocks_[block].*place;
    if (at == NOWHERE) return;
    held_[at] = held_.back();
    blocks_[held_[at]].*place = at;
    held_.pop_back();
    at = NOWHERE;
  }

  void rename(int32_t source, int32_t target) {
    if (blocks_[source].*place != NOWHERE) held_[blocks_[source].*place] = target;
  }

 private:
  std::vector<Block>& blocks_;
  std::vector<int32_t> held_;
};

class Policy {
 public:
  explicit Policy(int64_t num_blocks)
      : Policy(num_blocks, std::make_shared<Hazards>(), true) {}

  // For a tier below: judges by the same hazards, and learns nothing itself.
  std::unique_ptr<Policy> below(int64_t num_blocks) const {
    return std::unique_ptr<Policy>(new Policy(num_blocks, hazards_, false));
  }

  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }

  template <class Id>
  void enter(const Id* ids, const uint64_t* keys, int64_t count, double clock) {
    const double now = time_of(clock);
    for (int64_t i = 0; i < count; ++i) {
      shadow_.prefetch(keys[i]);
      if (learns_) conversations_.prefetch(keys[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<int32_t>(ids[i]);
      forget_block(at);
      Block& block = blocks_[at];
      block.key = keys[i];
      block.is_live = true;
      const int32_t entry = shadow_.find(block.key);
      if (entry != NOWHERE && shadow_.block(entry) == NOWHERE) {
        block.entry = entry;
        shadow_.set_block(entry, at);
      }
      if (!learns_) continue;
      if (const auto* turn = conversations_.find(block.key)) {
        block.turns = turn->turns;
        block.gap = now - turn->when;
      }
      sample_.came_back(block.key, *hazards_, now);
      sample_.advance(STEPS_PER_PAGE, *hazards_, now);
    }
    known_ = false;
  }

  template <class Id>
  void hit(const Id* ids, int64_t count, double clock) {
    const double now = time_of(clock);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<int32_t>(ids[i]);
      withdraw_one(at);
      Block& block = blocks_[at];
      block.was_found = true;
      block.gap = now - block.last_used;
      if (learns_ && !block.is_live) sample_.came_back(block.key, *hazards_, now);
      block.is_live = true;
      if (learns_) sample_.advance(STEPS_PER_PAGE, *hazards_, now);
    }
    known_ = false;
  }

  template <class Id>
  void release(const Id* ids, int64_t count, const Use& use, double clock) {
    const double now = time_of(clock);
    if (count == 0) return;
    least_now_ = now + static_cast<double>(count) * PAGE_SECONDS;
    count_hits(ids, count);
    const Request request = learns_ ? request_of(ids, count, use, now) : Request{};
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<int32_t>(ids[i]);
      Block& block = blocks_[at];
      if (learns_ || block.uses == 0) block.kind = kind_of(request, use, i == 0 && use.has_partial_tail);
      block.uses = std::min(MAX_USES, block.uses + 1);
      settle(at, now, now);
    }
    hazards_->refresh_next();
    known_ = false;
  }

  void take_over(int64_t id, const History& history, double clock) {
    const double now = time_of(clock);
    Block& block = blocks_[id];
    block.kind = history.kind;
    block.uses = history.uses;
    settle(static_cast<int32_t>(id), std::min(history.last_used, now), now);
    known_ = false;
  }

  template <class Id>
  void offer(const Id* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<int32_t>(ids[i]);
      leaves_.add(at);
      const Block& block = blocks_[at];
      if (block.is_stray) strays_.add(at);
      if (block.entry != NOWHERE) shadow_.may_go_now(block.entry);
    }
    known_ = false;
  }

  template <class Id>
  void withdraw(const Id* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i) withdraw_one(static_cast<int32_t>(ids[i]));
    known_ = false;
  }

  // NOWHERE: nothing is offered.
  int32_t victim(double clock) {
    if (!known_) victim_ = choose(time_of(clock));
    known_ = true;
    return victim_;
  }

  template <class Id>
  void leave(const Id* ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i) forget_block(static_cast<int32_t>(ids[i]));
    known_ = false;
  }

  // Blocks above a smaller size hold nothing. What is remembered beside the blocks starts anew: resizes are rare.
  void resize(int64_t num_blocks) {
    for (int64_t at = num_blocks; at < this->num_blocks(); ++at) forget_block(static_cast<int32_t>(at));
    blocks_.resize(num_blocks);
    std::vector<int32_t> by_age;
    for (int32_t at = 0; at < num_blocks; ++at) {
      Block& block = blocks_[at];
      if (block.stamp) by_age.push_back(at);
      set_stray(at, false);
      block.entry = NOWHERE;
    }
    std::sort(by_age.begin(), by_age.end(), [&](int a, int b) { return blocks_[a].stamp < blocks_[b].stamp; });
    shadow_ = ShadowLru(std::max<int64_t>(1, num_blocks));
    for (const int32_t at : by_age) remember_in_shadow(at);
    for (int64_t i = 0; i < leaves_.size(); ++i)
      if (blocks_[leaves_[i]].entry != NOWHERE) shadow_.may_go_now(blocks_[leaves_[i]].entry);
    if (learns_) {
      sample_ = ReuseSample(num_blocks);
      conversations_ = Conversations(num_blocks);
    }
    known_ = false;
  }

  void move(int64_t source, int64_t target) {
    if (source == target) return;
    forget_block(static_cast<int32_t>(target));
    leaves_.rename(static_cast<int32_t>(source), static_cast<int32_t>(target));
    strays_.rename(static_cast<int32_t>(source), static_cast<int32_t>(target));
    blocks_[target] = blocks_[source];
    blocks_[source] = Block{};
    if (blocks_[target].entry != NOWHERE) shadow_.set_block(blocks_[target].entry, static_cast<int32_t>(target));
    known_ = false;
  }

  History history(int64_t id) const { return {blocks_[id].last_used, blocks_[id].uses, blocks_[id].kind}; }

  double worth_of(const History& history, double clock) const {
    return hazards_->index(hazards_->node_of(history.kind), time_of(clock) - history.last_used);
  }

  std::vector<int32_t> offered() const {
    std::vector<int32_t> found(leaves_.size());
    for (int64_t i = 0; i < leaves_.size(); ++i) found[i] = leaves_[i];
    return found;
  }

 private:
  static constexpr int STEPS_PER_PAGE = 2;

  struct alignas(64) Block {
    uint64_t key = 0, stamp = 0;           // stamp: of its last use, in the order of uses
    double last_used = 0.0, gap = -1.0;    // gap: what had passed when it was found again; negative: unknown
    int32_t node = 0, kind = 0, uses = 0;
    int32_t turns = 0;                     // of the conversation whose last full page it is
    int32_t entry = NOWHERE;               // in the shadow
    int32_t leaf = NOWHERE, stray = NOWHERE;
    bool is_live = false, was_found = false;
    bool is_stray = false;                 // LRU would not have it any more
  };

  struct Request {
    int turns = 0;
    double gap = -1.0;
    int64_t added = 0;
  };

  Policy(int64_t num_blocks, std::shared_ptr<Hazards> hazards, bool learns)
      : learns_(learns),
        hazards_(std::move(hazards)),
        sample_(learns ? num_blocks : 0),
        conversations_(learns ? num_blocks : 0),
        shadow_(std::max<int64_t>(1, num_blocks)),
        blocks_(num_blocks),
        leaves_(blocks_),
        strays_(blocks_) {}

  double time_of(double clock) const { return std::max(clock, least_now_); }

  template <class Id>
  void count_hits(const Id* ids, int64_t count) {
    int64_t found = 0, lru_found = 0;
    bool is_prefix = true;
    for (int64_t i = count - 1; i >= 0; --i) {
      Block& block = blocks_[ids[i]];
      is_prefix = is_prefix && block.entry != NOWHERE;
      lru_found += is_prefix;
      found += block.was_found;
      block.was_found = false;
    }
    credit_.count(found, lru_found, count, num_blocks());
  }

  // Which conversation a request goes on with, by the deepest page at which an earlier turn ended.
  template <class Id>
  Request request_of(const Id* ids, int64_t count, const Use& use, double now) {
    Request request{0, -1.0, count};
    int64_t joint = count;
    for (int64_t i = 0; i < count; ++i) {
      Block& block = blocks_[ids[i]];
      if (block.turns == 0) continue;
      request = {block.turns, block.gap, i};
      joint = i;
      conversations_.forget(block.key);
      block.turns = 0;
      break;
    }
    const int64_t end = use.has_partial_tail;
    if (end < count) {
      Block& block = blocks_[ids[end]];
      if (block.uses == 0 || joint == end) {
        block.turns = std::min(MAX_TURNS, request.turns + 1);
        conversations_.remember(block.key, block.turns, now);
      }
    }
    return request;
  }

  static int steps(double value, const double* edges, int count) {
    int step = 0;
    while (step < count && value >= edges[step]) ++step;
    return step;
  }

  static int kind_of(const Request& request, const Use& use, bool is_tail) {
    static constexpr double gaps[]{15.0, 37.5, 93.75, 234.375}, outputs[]{24.0, 60.0, 150.0, 375.0, 937.5}, added[]{3.0, 9.0, 27.0};
    if (is_tail) return (1 * RADIX[1] + use.stop) * (5 * 6 * 6 * 4);
    int kind = use.stop;
    kind = kind * RADIX[2] + std::min(request.turns, 4);
    kind = kind * RADIX[3] + (request.gap < 0.0 ? 0 : 1 + steps(request.gap, gaps, 4));
    kind = kind * RADIX[4] + steps(static_cast<double>(use.output_tokens), outputs, 5);
    return kind * RADIX[5] + steps(static_cast<double>(request.added), added, 3);
  }

  // A block is cached from now on, last used at `since`.
  void settle(int32_t at, double since, double now) {
    Block& block = blocks_[at];
    block.node = hazards_->node_of(block.kind);
    block.last_used = since;
    block.stamp = ++stamps_;
    block.is_live = false;
    remember_in_shadow(at);
    if (learns_) sample_.watch(block.key, block.node, since, now - since, *hazards_, now);
  }

  void remember_in_shadow(int32_t at) {
    Block& block = blocks_[at];
    if (block.entry == NOWHERE) {
      block.entry = shadow_.find(block.key);
      if (block.entry != NOWHERE && shadow_.block(block.entry) != NOWHERE) lose_entry(shadow_.block(block.entry));
    }
    const int32_t dropped = shadow_.use(block.entry, block.key, at, block.stamp);
    set_stray(at, false);
    if (dropped != NOWHERE) lose_entry(dropped);
  }

  void lose_entry(int32_t at) {
    blocks_[at].entry = NOWHERE;
    set_stray(at, true);
  }

  void set_stray(int32_t at, bool is_stray) {
    Block& block = blocks_[at];
    num_strays_ += is_stray - block.is_stray;
    block.is_stray = is_stray;
    if (!is_stray)
      strays_.take_out(at);
    else if (block.leaf != NOWHERE)
      strays_.add(at);
  }

  void withdraw_one(int32_t at) {
    leaves_.take_out(at);
    strays_.take_out(at);
  }

  void forget_block(int32_t at) {
    withdraw_one(at);
    Block& block = blocks_[at];
    set_stray(at, false);
    if (block.entry != NOWHERE) shadow_.set_block(block.entry, NOWHERE);
    if (block.is_live && learns_) sample_.drop_live(block.key);
    block = Block{};
  }

  int32_t choose(double now) {
    const bool is_trained = hazards_->num_events() >= TRAINED;
    if (!is_trained || !credit_.covers(num_strays_)) {
      if (strays_.size()) return lowest(strays_, now);
      if (!is_trained || credit_.is_spent())
        if (const int32_t oldest = shadow_.oldest([&](int32_t at) { return blocks_[at].leaf != NOWHERE; }); oldest != NOWHERE)
          return oldest;
    }
    return lowest(leaves_, now);
  }

  // First all draws, then all worths, then the least of them: so that the memory they wait for comes together.
  template <class Blocks>
  int32_t lowest(const Blocks& from, double now) {
    const auto size = static_cast<uint64_t>(from.size());
    const int count = static_cast<int>(std::min<uint64_t>(size, CANDIDATES));
    if (count == 0) return NOWHERE;
    std::array<int32_t, CANDIDATES> drawn;
    for (int i = 0; i < count; ++i) {
      drawn[i] = from[size <= CANDIDATES ? i : static_cast<int64_t>((mix(draws_++) >> 32) * size >> 32)];
      __builtin_prefetch(&blocks_[drawn[i]]);
    }
    std::array<double, CANDIDATES> worth;
    for (int i = 0; i < count; ++i) {
      const Block& block = blocks_[drawn[i]];
      worth[i] = hazards_->index(block.node, now - block.last_used);
    }
    int best = 0;
    for (int i = 1; i < count; ++i)
      if (worth[i] < worth[best] || (worth[i] == worth[best] && blocks_[drawn[i]].stamp < blocks_[drawn[best]].stamp)) best = i;
    return drawn[best];
  }

  bool learns_;
  std::shared_ptr<Hazards> hazards_;
  ReuseSample sample_;
  Conversations conversations_;
  ShadowLru shadow_;
  Credit credit_;
  std::vector<Block> blocks_;
  Bag<Block, &Block::leaf> leaves_;
  Bag<Block, &Block::stray> strays_;
  int64_t num_strays_ = 0;
  uint64_t stamps_ = 0, draws_ = 0;
  double least_now_ = 0.0;
  int32_t victim_ = NOWHERE;
  bool known_ = false;  // victim_
};

}  // namespace kv::adaptive
