#include "attention_shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kv {
namespace {

constexpr int64_t MAX_SHARED_ROWS = 96;  // of a KV head, so that a tile and the states of its rows stay in a core's cache

class Finder {
 public:
  Finder(const Pages& pages, int64_t page_size, int group, const std::vector<DecodeItem>& items)
      : pages_(pages), page_size_(page_size), group_(group), items_(items) {}

  // Items with much in common become neighbours.
  std::vector<int64_t> order() const {
    std::vector<int64_t> order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      if (items_[a].first_key != items_[b].first_key) return items_[a].first_key < items_[b].first_key;
      const int64_t mine = num_blocks(a), other = num_blocks(b), same = common_blocks(a, b);
      if (same < std::min(mine, other)) return blocks(a)[same] < blocks(b)[same];
      return mine != other ? mine < other : a < b;
    });
    return order;
  }

  // How far two items see the same keys: whole tiles, or the first key of `a` for not at all.
  int64_t common_stop(int64_t a, int64_t b) const {
    const DecodeItem &mine = items_[a], &other = items_[b];
    if (mine.first_key != other.first_key) return mine.first_key;
    const int64_t keys = (mine.first_key / page_size_ + common_blocks(a, b)) * page_size_;
    const int64_t stop = std::min({keys, mine.stop_key, other.stop_key}) / DECODE_TILE * DECODE_TILE;
    return std::max(stop, mine.first_key);
  }

  int64_t rows(int64_t item) const { return items_[item].num_queries * group_; }

 private:
  const int32_t* blocks(int64_t item) const {
    const int64_t sequence = items_[item].sequence, page = items_[item].first_key / page_size_;
    return pages_.blocks + pages_.table_offsets[sequence] + page - pages_.first_pages[sequence];
  }

  int64_t common_blocks(int64_t a, int64_t b) const {  // how many they begin with
    const int64_t count = std::min(num_blocks(a), num_blocks(b));
    return std::mismatch(blocks(a), blocks(a) + count, blocks(b)).first - blocks(a);
  }

  int64_t num_blocks(int64_t item) const {
    const DecodeItem& each = items_[item];
    return each.first_key == each.stop_key ? 0 : (each.stop_key - 1) / page_size_ - each.first_key / page_size_ + 1;
  }

  const Pages& pages_;
  const int64_t page_size_;
  const int group_;
  const std::vector<DecodeItem>& items_;
};

// Whether the next item, with keys up to `common` like those of the last one, joined the share. One that has little in
// common with the others would take from them what they share.
bool joins(ItemShare& share, int64_t first_key, int64_t common) {
  if (common <= first_key) return false;
  const int64_t joint = share.count == 1 ? common : std::min(common, share.shared_stop);
  if (share.count > 1 && 2 * (joint - first_key) < share.shared_stop - first_key) return false;
  share.shared_stop = joint;
  ++share.count;
  return true;
}

}  // namespace

std::vector<ItemShare> find_shares(const Pages& pages, int64_t page_size, int group, std::vector<DecodeItem>& items) {
  const auto count = static_cast<int64_t>(items.size());
  std::vector<ItemShare> shares;
  if (count < 2 || pages.pages || !pages.blocks) {
    for (int64_t i = 0; i < count; ++i) shares.push_back({i, 1, items[i].first_key});
    return shares;
  }
  const Finder finder(pages, page_size, group, items);
  const std::vector<int64_t> order = finder.order();
  int64_t rows = 0;  // of the last share
  for (int64_t i = 0; i < count; ++i) {
    const int64_t more = finder.rows(order[i]), common = i ? finder.common_stop(order[i], order[i - 1]) : 0;
    if (i && rows + more <= MAX_SHARED_ROWS && joins(shares.back(), items[order[i]].first_key, common)) {
      rows += more;
    } else {
      shares.push_back({i, 1, items[order[i]].first_key});
      rows = more;
    }
  }
  std::vector<DecodeItem> sorted;
  for (const int64_t item : order) sorted.push_back(items[item]);
  items = std::move(sorted);
  std::stable_partition(shares.begin(), shares.end(), [](const ItemShare& share) { return share.count > 1; });
  return shares;
}

}  // namespace kv
