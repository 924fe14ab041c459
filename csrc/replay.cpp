#include "replay.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <vector>

namespace kv {
namespace {

// A set of numbers below a limit that knows its highest: words of bits, and above each level one bit per word of it.
class HighestFirst {
 public:
  explicit HighestFirst(int64_t limit) {
    do levels_.emplace_back(limit = (limit + 63) / 64);
    while (limit > 1);
  }

  void add(int64_t number) {
    for (auto& level : levels_) {
      uint64_t& word = level[number / 64];
      const bool had_any = word != 0;
      word |= uint64_t{1} << number % 64;
      if (had_any) return;
      number /= 64;
    }
  }

  void remove(int64_t number) {
    for (auto& level : levels_) {
      uint64_t& word = level[number / 64];
      word &= ~(uint64_t{1} << number % 64);
      if (word) return;
      number /= 64;
    }
  }

  int64_t highest() const {  // REQUIRES: not empty
    int64_t number = 0;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      number = number * 64 + 63 - std::countl_zero((*level)[number]);
    return number;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;  // the finest first; the last has one word
};

// [references]: the request that uses each reference's page next; num_requests if none does.
std::vector<int32_t> next_users(const TraceView& trace) {
  std::vector<int32_t> users(trace.first[trace.num_requests]);
  std::vector<int32_t> next(trace.num_blocks, static_cast<int32_t>(trace.num_requests));
  for (int64_t request = trace.num_requests - 1; request >= 0; --request)
    for (int64_t i = trace.first[request]; i < trace.first[request + 1]; ++i) {
      int32_t& user = next[trace.pages[i]];
      users[i] = user;
      user = static_cast<int32_t>(request);
    }
  return users;
}

}  // namespace

void replay_lru(const TraceView& trace, int64_t capacity, const ReplayCounts& counts) {
  const auto none = static_cast<int32_t>(trace.num_requests);  // the last user of a page nobody used; its end stays 0
  std::vector<int32_t> last_user(trace.num_blocks, none), end(trace.num_requests + 1), alive(trace.num_requests + 1);
  int64_t size = 0, oldest = 0;
  for (int32_t request = 0; request < none; ++request) {
    const int32_t* chain = trace.pages + trace.first[request];
    const auto length = static_cast<int32_t>(std::min(trace.first[request + 1] - trace.first[request], capacity));
    int32_t hits = 0;
    while (hits < length) {
      int32_t& user = last_user[chain[hits]];
      if (hits >= end[user]) break;  // and so are all behind it: a prefix is cached
      --alive[user];
      user = request;
      ++hits;
    }
    for (int32_t k = hits; k < length; ++k) last_user[chain[k]] = request;
    end[request] = alive[request] = length;
    size += length - hits;
    int64_t surplus = std::max<int64_t>(0, size - capacity);
    counts.hits[request] = hits;
    counts.evictions[request] = static_cast<int32_t>(surplus);
    size -= surplus;
    while (surplus) {
      if (oldest > request) throw std::invalid_argument("pages: the chains do not form a forest");
      const auto gone = static_cast<int32_t>(std::min<int64_t>(surplus, alive[oldest]));
      alive[oldest] -= gone;
      end[oldest] -= gone;
      surplus -= gone;
      if (!alive[oldest]) ++oldest;
    }
  }
}

void replay_min(const TraceView& trace, int64_t capacity, const ReplayCounts& counts) {
  const std::vector<int32_t> users = next_users(trace);
  std::vector<int32_t> waiting(trace.num_requests + 1);
  HighestFirst waited_for(trace.num_requests + 1);
  int64_t size = 0;
  for (int64_t request = 0; request < trace.num_requests; ++request) {
    const int32_t* chain = users.data() + trace.first[request];
    const int64_t length = std::min(trace.first[request + 1] - trace.first[request], capacity);
    const int32_t hits = waiting[request];
    if (hits) waited_for.remove(request);
    waiting[request] = 0;
    int64_t surplus = std::max<int64_t>(0, size - hits + length - capacity);
    counts.hits[request] = hits;
    counts.evictions[request] = static_cast<int32_t>(surplus);
    size += length - hits - surplus;
    while (surplus) {  // the request's own pages are not among those that wait
      const int64_t farthest = waited_for.highest();
      const auto gone = static_cast<int32_t>(std::min<int64_t>(surplus, waiting[farthest]));
      waiting[farthest] -= gone;
      surplus -= gone;
      if (!waiting[farthest]) waited_for.remove(farthest);
    }
    for (int64_t k = 0; k < length;) {  // neighbours mostly have the same next user
      const int32_t user = chain[k];
      const int64_t start = k;
      while (k < length && chain[k] == user) ++k;
      if (!waiting[user]) waited_for.add(user);
      waiting[user] += static_cast<int32_t>(k - start);
    }
  }
}

}  // namespace kv
