#include "attention_cut.h"

#include <algorithm>
#include <stdexcept>

namespace kv {
namespace {

constexpr int64_t DECODE_ROWS = 16;       // queries x group up to which a sequence is worth cutting over its context
constexpr int64_t QUERIES_PER_ITEM = 16;  // where there is no prefill kernel

void require_offsets(const char* name, const std::vector<int64_t>& offsets, size_t sequences, int64_t end) {
  const std::string argument = name;
  require(offsets.size() == sequences + 1, argument + ": expected one more than there are sequences");
  require(offsets.front() == 0, argument + " must begin with 0");
  require(std::is_sorted(offsets.begin(), offsets.end()), argument + " must not decrease");
  require(end < 0 || offsets.back() == end, argument + " must end with the number of blocks");
}

}  // namespace

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

void PagedSequences::check() {
  constexpr int64_t FAR = int64_t{1} << 31;  // positions beyond it are nobody's
  const size_t entries = std::max(blocks.size(), places.size());
  require(page_size >= 1 && page_size < FAR, "page_size must be at least 1");
  require(window >= 0, "window must not be negative; 0 is none");
  require_offsets("query_offsets", query_offsets, starts.size(), -1);
  require_offsets("table_offsets", table_offsets, starts.size(), static_cast<int64_t>(entries));
  require(!has_pages || pages.size() == entries, "pages: expected one per block");
  for (size_t i = 0; i < starts.size(); ++i) {
    const std::string which = " of sequence " + std::to_string(i);
    require(starts[i] >= 0 && starts[i] < FAR, "starts: start" + which + " is out of range");
    const int64_t stop = starts[i] + query_offsets[i + 1] - query_offsets[i];
    require(stop <= FAR, "query_offsets: length" + which + " is out of range");
    first_pages.push_back(window ? std::max<int64_t>(0, starts[i] - window + 1) / page_size : 0);
    const int64_t begin = table_offsets[i], end = table_offsets[i + 1];
    if (has_pages) {
      for (int64_t e = begin; e < end; ++e)
        require(pages[e] >= 0 && (e == begin || pages[e] > pages[e - 1]), "pages" + which + " must increase, from 0 on");
    } else if (stop > starts[i]) {
      require((first_pages[i] + end - begin) * page_size >= stop,
              "table_offsets: too few blocks for what the queries" + which + " see");
    }
  }
}

Pages PagedSequences::view() const {
  return {static_cast<int64_t>(starts.size()), query_offsets.data(), starts.data(), table_offsets.data(),
          places.empty() ? blocks.data() : nullptr, places.data(), has_pages ? pages.data() : nullptr,
          first_pages.data(), window};
}

bool PagedSequences::is_decode(int64_t sequence, int group) const {
  return (query_offsets[sequence + 1] - query_offsets[sequence]) * group <= DECODE_ROWS;
}

std::shared_ptr<const WorkItems> PagedSequences::items_for(AttentionCall call,
                                                           std::shared_ptr<const WorkItems>& items) const {
  const Pages pages = view();
  call.pages = &pages;
  const int group = call.query_heads / call.cache.kv_heads;
  const int64_t queries = KV_SELECT(prefill_kernels).queries_per_item(call);
  if (!items || items->group != group || items->kv_heads != call.cache.kv_heads ||
      items->queries_per_prefill != queries)
    items = std::make_shared<const WorkItems>(cut(group, call.cache.kv_heads, queries));
  return items;
}

WorkItems PagedSequences::cut(int group, int kv_heads, int64_t queries_per_prefill) const {
  WorkItems items{.group = group, .kv_heads = kv_heads, .queries_per_prefill = queries_per_prefill};
  for (int64_t s = 0; s < static_cast<int64_t>(starts.size()); ++s) {
    const int64_t begin = query_offsets[s], end = query_offsets[s + 1];
    if (begin == end) continue;
    if (!is_decode(s, group)) {
      const int64_t step = queries_per_prefill ? queries_per_prefill : QUERIES_PER_ITEM;
      for (int64_t at = (end - begin - 1) / step * step; at >= 0; at -= step) {  // the last ones see most
        const int64_t first = begin + at, count = std::min(step, end - first), position = starts[s] + at;
        const int64_t seen = window ? std::max<int64_t>(0, position - window + 1) : 0;
        for (int head = 0; head < kv_heads; ++head)
          if (queries_per_prefill) items.prefill.push_back({s, first, count, head});
          else items.decode.push_back({s, first, count, head, 1, seen, position + count, -1});
      }
      continue;
    }
    std::vector<DecodeItem> found = pieces(s, kv_heads);
    if (found.size() > 1) {
      const int64_t rows = (end - begin) * group;
      for (int head = 0; head < kv_heads; ++head)
        items.merges.push_back({{s, begin, end - begin, head, 1, 0, 0, items.partial_rows + head * rows},
                                static_cast<int64_t>(found.size()), kv_heads * rows});
      for (DecodeItem& piece : found) {
        piece.partial = items.partial_rows;
        items.partial_rows += kv_heads * rows;
      }
    }
    items.decode.insert(items.decode.end(), found.begin(), found.end());
  }
  if (queries_per_prefill) {  // else some items are of one KV head
    items.shares = find_shares(view(), page_size, group, items.decode);
  } else {
    for (size_t i = 0; i < items.decode.size(); ++i)
      items.shares.push_back({static_cast<int64_t>(i), 1, items.decode[i].first_key});
  }
  return items;
}

// Positions are cut where all pages are listed, the slots of the list where they are chosen: what lies
// between chosen pages costs nothing.
std::vector<DecodeItem> PagedSequences::pieces(int64_t s, int kv_heads) const {
  const int64_t begin = query_offsets[s], count = query_offsets[s + 1] - begin, stop = starts[s] + count;
  const int64_t first_key = window ? std::max<int64_t>(0, starts[s] - window + 1) : 0;
  std::vector<DecodeItem> found;
  const auto add = [&](int64_t from, int64_t to) {
    from = std::max(from, first_key);
    to = std::min(to, stop);
    if (from < to) found.push_back({s, begin, count, 0, kv_heads, from, to, -1});
  };
  if (has_pages) {
    const auto end = pages.begin() + table_offsets[s + 1];
    const auto list = std::partition_point(pages.begin() + table_offsets[s], end,
                                           [&](int64_t page) { return (page + 1) * page_size <= first_key; });
    const auto position = [&](int64_t slot) { return list[slot / page_size] * page_size + slot % page_size; };
    const int64_t slots = (end - list) * page_size;
    for (int64_t at = 0; at < slots; at += PIECE)
      add(position(at), position(std::min(at + PIECE, slots) - 1) + 1);
  } else {
    for (int64_t at = first_key / PIECE * PIECE; at < stop; at += PIECE) add(at, at + PIECE);
  }
  if (found.empty()) found.push_back({s, begin, count, 0, kv_heads, 0, 0, -1});
  return found;
}

}  // namespace kv
