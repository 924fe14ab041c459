#include "head_pages.h"

#include <algorithm>
#include <vector>

#include "decode.h"
#include "threads.h"

namespace kv {
namespace {

constexpr int64_t PIECE = 2048;            // tokens, as in attention.cpp
constexpr int64_t THREAD_BYTES = 1 << 17;  // of K and V that are worth another thread

}  // namespace

void attend_head_pages(AttentionCall call, const HeadPages& lists) {
  const int kv_heads = call.cache.kv_heads, group = call.query_heads / kv_heads;
  const int64_t num_entries = lists.offsets[kv_heads];
  const int64_t base = num_entries ? *std::min_element(lists.addresses, lists.addresses + num_entries) : 0;
  std::vector<int64_t> places(num_entries), starts(kv_heads), zeros(kv_heads + 1);
  for (int64_t i = 0; i < num_entries; ++i) places[i] = lists.addresses[i] - base;
  std::vector<DecodeItem> items;
  std::vector<DecodeMerge> merges;
  int64_t partial_rows = 0;
  for (int head = 0; head < kv_heads; ++head) {
    const int64_t pages = lists.offsets[head + 1] - lists.offsets[head];
    const int64_t tokens = pages ? (pages - 1) * call.cache.page_size + lists.last_tokens : 0;
    const int64_t pieces = std::max<int64_t>(1, (tokens + PIECE - 1) / PIECE);
    starts[head] = std::max<int64_t>(0, tokens - 1);
    for (int64_t at = 0; at < pieces; ++at)
      items.push_back({head, 0, 1, head, 1, at * PIECE, std::min(tokens, (at + 1) * PIECE),
                       pieces > 1 ? partial_rows + at * group : -1});
    if (pieces > 1) {
      merges.push_back({{head, 0, 1, head, 1, 0, 0, partial_rows}, pieces, group});
      partial_rows += pieces * group;
    }
  }
  const Pages pages{kv_heads, zeros.data(), starts.data(), lists.offsets, nullptr, places.data(), nullptr, zeros.data(), 0};
  call.pages = &pages;
  call.cache.base = reinterpret_cast<uint8_t*>(base);
  const DecodeKernels& decode = KV_SELECT(decode_kernels);
  std::vector<float> partials(partial_rows * decode.state_floats(call));
  const auto num_items = static_cast<int64_t>(items.size()), num_merges = static_cast<int64_t>(merges.size());
  const int64_t bytes = num_entries * 2 * call.cache.half_stride;
  const int threads = static_cast<int>(std::min<int64_t>(num_items, threads_for(bytes, THREAD_BYTES)));
#pragma omp parallel num_threads(std::max(1, threads))
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_items; ++i) decode.run(call, items[i], partials.data());
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < num_merges; ++i) decode.merge(call, merges[i], partials.data());
  }
}

}  // namespace kv
