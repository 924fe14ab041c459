// Sequential replays of a trace over arrays; src/kvpager/simulator/{lru,min}_path.py say how they work.
#pragma once

#include <cstdint>

namespace kv {

// Request r reads pages[first[r] .. first[r + 1] - 1], root first. REQUIRES: 0 <= page < num_blocks, chains form a forest.
struct TraceView {
  const int64_t* first;  // [num_requests + 1]
  const int32_t* pages;
  int64_t num_requests, num_blocks;
};

// What is found of each request: pages hit, and blocks evicted for it. [num_requests] each.
struct ReplayCounts {
  int32_t *hits, *evictions;
};

void replay_lru(const TraceView& trace, int64_t capacity, const ReplayCounts& counts);
void replay_min(const TraceView& trace, int64_t capacity, const ReplayCounts& counts);

}  // namespace kv
