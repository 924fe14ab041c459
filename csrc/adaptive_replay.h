// A sequential replay of a trace under the adaptive policy, without a cache: src/kvpager/simulator/replay.py says what a
// replay is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "adaptive.h"
#include "replay.h"

namespace kv::adaptive {

// What the policy is told beside the pages: [num_blocks] and [num_requests].
struct TraceDetails {
  const int32_t* parent;
  const uint64_t* keys;
  const double* times;
  const int32_t* output_tokens;
  const uint8_t* stop;
  const uint8_t* has_partial_tail;
};

class Replay {
 public:
  Replay(const TraceView& trace, const TraceDetails& details, int64_t capacity)
      : trace_(trace), details_(details), capacity_(capacity), policy_(capacity), block_of_(trace.num_blocks, NOWHERE),
        page_in_(capacity), children_(trace.num_blocks), live_until_(trace.num_blocks, -1) {
    for (auto block = static_cast<int32_t>(capacity) - 1; block >= 0; --block) free_.push_back(block);
  }

  void run(const ReplayCounts& counts) {
    for (int64_t request = 0; request < trace_.num_requests; ++request) {
      const int64_t evictions = num_evictions_;
      counts.hits[request] = static_cast<int32_t>(serve(request));
      counts.evictions[request] = static_cast<int32_t>(num_evictions_ - evictions);
    }
  }

 private:
  int64_t serve(int64_t request) {
    const int32_t* pages = trace_.pages + trace_.first[request];
    const int64_t whole = trace_.first[request + 1] - trace_.first[request];
    const int64_t length = std::min(whole, capacity_);
    const double now = details_.times[request];
    if (length == 0) return 0;
    blocks_.resize(length);
    int64_t hits = 0;
    for (; hits < length && block_of_[pages[hits]] != NOWHERE; ++hits) blocks_[hits] = block_of_[pages[hits]];
    for (int64_t i = 0; i < length; ++i) live_until_[pages[i]] = request;
    policy_.hit(blocks_.data(), hits, now);
    keys_.clear();
    for (int64_t i = hits; i < length; ++i) {
      if (free_.empty()) evict(request, now);
      blocks_[i] = free_.back();
      free_.pop_back();
      block_of_[pages[i]] = blocks_[i];
      page_in_[blocks_[i]] = pages[i];
      if (details_.parent[pages[i]] >= 0) ++children_[details_.parent[pages[i]]];
      keys_.push_back(details_.keys[pages[i]]);
    }
    policy_.enter(blocks_.data() + hits, keys_.data(), length - hits, now);
    std::reverse(blocks_.begin(), blocks_.end());
    const bool has_tail = details_.has_partial_tail[request] != 0 && length == whole;
    policy_.release(blocks_.data(), length, {details_.output_tokens[request], details_.stop[request], has_tail}, now);
    if (children_[pages[length - 1]] == 0) policy_.offer(blocks_.data(), 1);
    return hits;
  }

  void evict(int64_t request, double now) {
    const int32_t block = policy_.victim(now);
    const int32_t page = page_in_[block], parent = details_.parent[page];
    policy_.leave(&block, 1);
    block_of_[page] = NOWHERE;
    free_.push_back(block);
    ++num_evictions_;
    if (parent >= 0 && --children_[parent] == 0 && live_until_[parent] != request) policy_.offer(&block_of_[parent], 1);
  }

  TraceView trace_;
  TraceDetails details_;
  int64_t capacity_;
  Policy policy_;
  std::vector<int32_t> block_of_, page_in_, children_, free_, blocks_;
  std::vector<uint64_t> keys_;
  std::vector<int64_t> live_until_;  // the last request that held a page
  int64_t num_evictions_ = 0;
};

}  // namespace kv::adaptive
