// How soon pages of each kind are used again, as far as has been seen; src/kvpager/eviction/adaptive_hazards.py explains
// it, and does the same arithmetic in the same order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "adaptive_table.h"

namespace kv::adaptive {

constexpr int NUM_BINS = 56;          // of age: [0, 2^-10 s), two an octave up to 2^17 s, and what is older
constexpr int MAX_NODES = 1024;       // kinds and their generalisations with a hazard of their own
constexpr int NUM_FEATURES = 6;
constexpr std::array<int, NUM_FEATURES> RADIX{2, 3, 5, 6, 6, 4};
constexpr int NUM_KINDS = 2 * 3 * 5 * 6 * 6 * 4;
constexpr double PRIOR_SCALE = 5.0;   // events that a kind's share of its parent's hazard is worth before it has any
constexpr double PRIOR_SHAPE = 3.0;   // the same for each bin
constexpr double ROOT_HAZARD = 0.1;   // times 1 / age: what is believed before anything was seen
constexpr double MEMORY = 20000.0;    // events after which older ones count a third

inline int bin_of(double age) {
  constexpr double first = 1.0 / 1024;
  if (!(age >= first)) return 0;
  const int64_t bin = static_cast<int64_t>(std::bit_cast<uint64_t>(age) >> 51) -
                      static_cast<int64_t>(std::bit_cast<uint64_t>(first) >> 51) + 1;
  return static_cast<int>(std::min<int64_t>(bin, NUM_BINS - 1));
}

inline double bin_start(int bin) {
  if (bin == 0) return 0.0;
  return std::bit_cast<double>(((std::bit_cast<uint64_t>(1.0 / 1024) >> 51) + static_cast<uint64_t>(bin - 1)) << 51);
}

class Hazards {
 public:
  Hazards() {
    int size = 1, offset = 0;
    for (int level = 0; level <= NUM_FEATURES; ++level) {
      offset_[level] = offset;
      stride_[level] = NUM_KINDS / size;
      offset += size;
      if (level < NUM_FEATURES) size *= RADIX[level];
    }
    node_at_.assign(offset, NOWHERE);
    for (int bin = 0; bin <= NUM_BINS; ++bin) start_[bin] = bin_start(bin);
    add_node(NOWHERE);
    node_at_[0] = 0;
  }

  int64_t num_events() const { return num_events_; }

  // The most special node there is for a kind, made where there is room.
  int node_of(int kind) {
    int found = 0;
    for (int level = 1; level <= NUM_FEATURES; ++level) {
      int32_t& node = node_at_[offset_[level] + kind / stride_[level]];
      if (node == NOWHERE) {
        if (static_cast<int>(nodes_.size()) == MAX_NODES) break;
        node = add_node(found);
      }
      found = node;
    }
    return found;
  }

  // Pages of this kind were watched from one age to another.
  void watched(int node, double from, double to) {
    if (!(to > from)) return;
    const int first = bin_of(from), last = bin_of(to);
    for (; node != NOWHERE; node = nodes_[node].parent) {
      auto& time = nodes_[node].time;
      if (first == last) {
        time[first] += to - from;
        continue;
      }
      time[first] += start_[first + 1] - from;
      for (int bin = first + 1; bin < last; ++bin) time[bin] += start_[bin + 1] - start_[bin];
      time[last] += to - start_[last];
    }
  }

  void used_again(int node, double age) {
    const int bin = bin_of(age);
    for (; node != NOWHERE; node = nodes_[node].parent) nodes_[node].events[bin] += 1.0;
    ++num_events_;
  }

  // Expected reuse per second of keeping a page of this kind, at this age.
  double index(int node, double age) const { return index_[node][bin_of(age)]; }

  // Brings one node up to date, each in its turn.
  void refresh_next() {
    turn_ = (turn_ + 1) % static_cast<int>(nodes_.size());
    refresh(turn_);
  }

 private:
  using Row = std::array<double, NUM_BINS>;
  struct Node {
    int parent;
    int64_t fresh_at;  // num_events_ when it was last refreshed
    Row events, time, hazard;
  };

  int add_node(int parent) {
    nodes_.push_back({parent, num_events_, {}, {}, {}});
    index_.push_back({});
    refresh(static_cast<int>(nodes_.size()) - 1);
    return static_cast<int>(nodes_.size()) - 1;
  }

  void refresh(int at) {
    Node& node = nodes_[at];
    const double kept = MEMORY / (MEMORY + static_cast<double>(num_events_ - node.fresh_at));
    node.fresh_at = num_events_;
    for (int bin = 0; bin < NUM_BINS; ++bin) {
      node.events[bin] *= kept;
      node.time[bin] *= kept;
    }
    estimate(node);
    rank(node, index_[at]);
  }

  void estimate(Node& node) const {
    if (node.parent == NOWHERE) {
      for (int bin = 0; bin < NUM_BINS; ++bin) {
        const double middle = (start_[bin] + start_[bin + 1]) * 0.5;
        const double prior = ROOT_HAZARD / std::max(middle, start_[1]);
        node.hazard[bin] = (node.events[bin] + PRIOR_SHAPE) / (node.time[bin] + PRIOR_SHAPE / prior);
      }
      return;
    }
    const Row& parent = nodes_[node.parent].hazard;
    double events = 0.0, expected = 0.0;
    for (int bin = 0; bin < NUM_BINS; ++bin) {
      events += node.events[bin];
      expected += node.time[bin] * parent[bin];
    }
    const double scale = (events + PRIOR_SCALE) / (expected + PRIOR_SCALE);
    for (int bin = 0; bin < NUM_BINS; ++bin) {
      const double prior = scale * parent[bin];
      node.hazard[bin] = (node.events[bin] + PRIOR_SHAPE) / (node.time[bin] + PRIOR_SHAPE / prior);
    }
  }

  void rank(const Node& node, Row& index) const {
    std::array<double, NUM_BINS + 1> reuse{}, held{};
    double alive = 1.0;
    for (int bin = 0; bin < NUM_BINS; ++bin) {
      const double width = start_[bin + 1] - start_[bin];
      const double left = 1.0 / (1.0 + node.hazard[bin] * width);
      reuse[bin + 1] = reuse[bin] + alive * (1.0 - left);
      held[bin + 1] = held[bin] + alive * width * left;
      alive *= left;
    }
    const auto slope = [&](int from, int to) {
      const double time = held[to] - held[from];
      return time > 0.0 ? (reuse[to] - reuse[from]) / time : 0.0;  // 0: rounded away, nothing is left by then
    };
    std::array<int, NUM_BINS + 1> hull;
    int size = 0;
    hull[size++] = NUM_BINS;
    for (int bin = NUM_BINS - 1; bin >= 0; --bin) {
      while (size > 1 && slope(bin, hull[size - 1]) <= slope(bin, hull[size - 2])) --size;
      index[bin] = slope(bin, hull[size - 1]);
      hull[size++] = bin;
    }
  }

  std::array<int, NUM_FEATURES + 1> offset_, stride_;
  std::array<double, NUM_BINS + 1> start_;
  std::vector<int32_t> node_at_;  // by level and leading digits of the kind
  std::vector<Node> nodes_;
  std::vector<Row> index_;  // by node; apart, because victims are chosen by it
  int64_t num_events_ = 0;
  int turn_ = 0;
};

}  // namespace kv::adaptive
