// Which cached rows a decode kernel looks at together: tiles of the keys of one sequence, in the order of its page list.
// It knows nothing of what the rows hold.
// Include only from *.isa.cpp.
#pragma once

#include "decode.h"
#include "vec.h"

namespace kv::KV_ISA {
namespace {

constexpr int TILE = DECODE_TILE;

struct Tile {
  int count;             // keys
  int64_t start;         // position of the tile
  int64_t row[TILE];     // byte offset of a key's row of head 0; behind the last key: its row again
  int64_t block[TILE];   // byte offset of a key's block
  int32_t position[TILE];  // from `start`; behind the last key: far away
};

class Walk {  // over the page list of a sequence, tile by tile
 public:
  Walk(const AttentionCall& call, const DecodeItem& item) : cache_(&call.cache), pages_(call.pages), item_(item) {
    entry_ = pages_->table_offsets[item.sequence];
    end_ = pages_->table_offsets[item.sequence + 1];
    shift_ = pages_->first_pages[item.sequence] - entry_;
    const int64_t first = item.first_key / cache_->page_size;
    if (!pages_->pages) {
      entry_ = first - shift_;
    } else {
      for (int64_t high = end_; entry_ < high;) {
        const int64_t middle = entry_ + (high - entry_) / 2;
        if (pages_->pages[middle] < first) entry_ = middle + 1;
        else high = middle;
      }
    }
    start_ = item.first_key / TILE * TILE;
  }

  bool next(Tile& tile) {  // the next tile that holds keys
    tile.count = 0;
    while (!tile.count && start_ < item_.stop_key && entry_ < end_) fill(tile);
    if (!tile.count) return false;
    for (int i = tile.count; i < TILE; ++i) {
      tile.row[i] = tile.row[tile.count - 1];
      tile.block[i] = tile.block[tile.count - 1];
      tile.position[i] = INT32_MAX;
    }
    return true;
  }

 private:
  void fill(Tile& tile) {
    const int64_t page_size = cache_->page_size;
    const int64_t first = start_ > item_.first_key ? start_ : item_.first_key;
    const int64_t stop = start_ + TILE < item_.stop_key ? start_ + TILE : item_.stop_key;
    tile.start = start_;
    for (; entry_ < end_; ++entry_) {
      const int64_t begin = (pages_->pages ? pages_->pages[entry_] : entry_ + shift_) * page_size;
      const int64_t from = begin > first ? begin : first, to = begin + page_size < stop ? begin + page_size : stop;
      const int64_t block = pages_->place(entry_, cache_->block_stride);
      for (int64_t at = from; at < to; ++at, ++tile.count) {
        tile.row[tile.count] = block + (at - begin) * cache_->slot_stride;
        tile.block[tile.count] = block;
        tile.position[tile.count] = static_cast<int32_t>(at - start_);
      }
      if (begin + page_size > stop) break;  // goes on in the next tile
    }
    start_ += TILE;
  }

  const CacheLayer* cache_;
  const Pages* pages_;
  DecodeItem item_;
  int64_t entry_, end_, shift_, start_;
};

// The tiles of a share, one after the other: first those that all of its items see, then each item's own.
struct Step {
  Tile tile;
  int64_t first_row, num_rows;  // of the rows of all items, those that see it
};

class Steps {
 public:
  Steps(const AttentionCall& call, const DecodeShare& share, int group)
      : call_(call), share_(share), group_(group),
        walk_(call, spanning(share.items[0], share.items[0].first_key, share.shared_stop)) {
    for (int64_t i = 0; i < share.count; ++i) rows_ += share.items[i].num_queries * group;
  }

  bool next(Step& step) {
    while (!walk_.next(step.tile)) {
      if (++at_ == share_.count) return false;
      first_row_ += at_ ? rows_ : 0;
      const DecodeItem& item = share_.items[at_];
      rows_ = item.num_queries * group_;
      walk_ = Walk(call_, spanning(item, share_.shared_stop, item.stop_key));
    }
    step.first_row = first_row_;
    step.num_rows = rows_;
    return true;
  }

 private:
  static DecodeItem spanning(DecodeItem item, int64_t first_key, int64_t stop_key) {
    item.first_key = first_key;
    item.stop_key = stop_key;
    return item;
  }

  const AttentionCall& call_;
  const DecodeShare& share_;
  const int group_;
  int64_t at_ = -1;  // the item whose own keys it is at; -1: those of all
  int64_t first_row_ = 0, rows_ = 0;
  Walk walk_;
};

struct Ahead {  // what is prefetched while something else is computed
  const uint8_t* base;
  const int64_t* row;
  int64_t bytes;

  // Inlined always: GCC takes a function of plain prefetches for one that does nothing, and drops the calls of it.
  [[gnu::always_inline]] void fetch(int key) const {
    if (!bytes) return;
    const uint8_t* const at = base + row[key];
    __builtin_prefetch(at, 0, 2);
    if (bytes > 64) __builtin_prefetch(at + 64, 0, 2);
    for (int64_t line = 128; line < bytes; line += 64) __builtin_prefetch(at + line, 0, 2);
  }
};

}  // namespace
}  // namespace kv::KV_ISA
