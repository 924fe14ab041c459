// The columns of a paged cache's books, and what a step and the end of a sequence do to them. The rules are those of
// cache/steps.py and memory/block_pool.py, for the plain case: whatever is not plain is left alone, and said so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace kv {

// By row of a sequence: cache/sequence_rows.py says what each means. `tail` has one line for each layer group.
struct RowColumns {
  int64_t *committed, *reserved, *published, *publish_until, *open_steps;
  bool *is_alive, *is_special;
  int32_t* tail;
  int64_t num_rows = 0, num_groups = 0;
};

// By block, but for `counts`: memory/block_pool.py. `free` is the stack of free blocks; `given`, `dropped` and `kept` the state after
// each state when a block is given out, and when its last mapping goes.
struct BlockColumns {
  int32_t *refcount, *pins;
  bool* indexed;
  uint8_t* states;
  int64_t* marks;
  int32_t* free;
  int64_t* counts;  // by state: as many are free as lie on the stack
  const uint8_t *given, *dropped, *kept;
  int64_t num_blocks = 0, num_states = 0;
};

struct Released {
  int64_t num_freed = 0, num_cached = 0;
};

constexpr uint8_t FREE = 0, USED = 1, CACHED = 2, ILLEGAL = 255;  // as in memory/block.py

inline int64_t pages_up_to(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

// One mapping less for each of `run`, whose blocks come in this order: not findable, findable, mapped by others too.
// Nothing is held, or nothing is changed and false returned; so too where a block stands twice or is not in the pool.
inline bool release_run(const BlockColumns& blocks, const std::vector<int64_t>& run, Released& released) {
  const int64_t count = static_cast<int64_t>(run.size());
  int64_t num_freed = 0, num_cached = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = run[i];
    if (id < 0 || id >= blocks.num_blocks) return false;
    const uint8_t state = blocks.states[id];
    if (blocks.refcount[id] < 1 || blocks.pins[id] != 0 || state >= blocks.num_states) return false;
    if (blocks.refcount[id] == 1) {
      if (num_freed + num_cached != i) return false;
      if (blocks.indexed[id]) ++num_cached;
      else if (num_freed++ != i) return false;
      if ((blocks.indexed[id] ? blocks.kept : blocks.dropped)[state] == ILLEGAL) return false;
    }
    blocks.marks[id] = i;
  }
  for (int64_t i = 0; i < count; ++i)
    if (blocks.marks[run[i]] != i) return false;
  for (int64_t i = 0; i < count; ++i) --blocks.refcount[run[i]];
  for (int64_t i = 0; i < num_freed + num_cached; ++i) {
    uint8_t& state = blocks.states[run[i]];
    state = (i < num_freed ? blocks.dropped : blocks.kept)[state];
  }
  released = {num_freed, num_cached};
  return true;
}

// The blocks that lie on top of the stack, the topmost first. False where there are too few, or one is not free.
inline bool read_free(const BlockColumns& blocks, int64_t count, std::vector<int32_t>& fresh) {
  const int64_t top = blocks.counts[FREE];
  if (count > top || top > blocks.num_blocks) return false;
  fresh.resize(count);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = fresh[i] = blocks.free[top - 1 - i];
    if (id < 0 || id >= blocks.num_blocks || blocks.states[id] >= blocks.num_states) return false;
    if (blocks.given[blocks.states[id]] == ILLEGAL) return false;
  }
  return true;
}

// Each of these is mapped once now.
inline void give_out(const BlockColumns& blocks, const std::vector<int32_t>& fresh) {
  for (const int32_t id : fresh) {
    blocks.states[id] = blocks.given[blocks.states[id]];
    blocks.refcount[id] = 1;
  }
  blocks.counts[FREE] -= static_cast<int64_t>(fresh.size());
  blocks.counts[USED] += static_cast<int64_t>(fresh.size());
}

// How many pages up to page `last` lie in neighbouring blocks.
inline int64_t num_neighbours(const int32_t* entries, int64_t last) {
  int64_t num = 1;
  while (num <= last && entries[last - num] == entries[last] - num) ++num;
  return entries[last] + 1 >= num ? num : 1;
}

// Whether one table alone maps these blocks, nothing holds them, and they are all findable or all not.
inline bool are_alike(const BlockColumns& blocks, int64_t first, int64_t num) {
  const bool indexed = blocks.indexed[first];
  int32_t others = 0;
  for (int64_t id = first; id < first + num; ++id) others |= (blocks.refcount[id] ^ 1) | blocks.pins[id];
  uint8_t differences = 0;
  for (int64_t id = first; id < first + num; ++id)
    differences |= (blocks.states[id] ^ USED) | static_cast<uint8_t>(blocks.indexed[id] ^ indexed);
  return !others && !differences;
}

// release_run() of a whole table, the last page first: what is freed goes on the stack, the first of it above all.
inline bool release_last_first(const BlockColumns& blocks, const int32_t* entries, int64_t num_pages,
                               Released& released) {
  constexpr int64_t FEW = 4;  // neighbours that are not worth a look of their own
  int64_t num_freed = 0, num_cached = 0, at = 0, looked_at = 0;
  while (at < num_pages) {
    const int64_t id = entries[num_pages - 1 - at];
    if (id < 0 || id >= blocks.num_blocks) break;
    if (at >= looked_at) {
      const int64_t num = num_neighbours(entries, num_pages - 1 - at);
      looked_at = at + num;
      if (num >= FEW && are_alike(blocks, id + 1 - num, num)) {
        if (num_freed + num_cached != at || (!blocks.indexed[id] && num_cached)) break;
        (blocks.indexed[id] ? num_cached : num_freed) += num;
        std::fill_n(blocks.refcount + id + 1 - num, num, 0);
        std::fill_n(blocks.states + id + 1 - num, num, blocks.indexed[id] ? blocks.kept[USED] : blocks.dropped[USED]);
        at = looked_at;
        continue;
      }
    }
    if (blocks.refcount[id] < 1 || blocks.pins[id] != 0 || blocks.states[id] != USED) break;
    if (blocks.refcount[id] > 1) {
      const int64_t mark = blocks.marks[id];  // where it stood before, if it did
      if (mark >= 0 && mark < at && entries[num_pages - 1 - mark] == id) break;
      blocks.marks[id] = at;
    } else if (num_freed + num_cached != at) {
      break;
    } else if (blocks.indexed[id]) {
      ++num_cached;
      blocks.states[id] = blocks.kept[USED];
    } else if (num_freed++ == at) {
      blocks.states[id] = blocks.dropped[USED];
    } else {
      break;
    }
    --blocks.refcount[id];
    ++at;
  }
  if (at < num_pages || blocks.counts[FREE] + num_freed > blocks.num_blocks) {
    while (at-- > 0) {
      ++blocks.refcount[entries[num_pages - 1 - at]];
      blocks.states[entries[num_pages - 1 - at]] = USED;
    }
    return false;
  }
  std::copy_n(entries + num_pages - num_freed, num_freed, blocks.free + blocks.counts[FREE]);
  blocks.counts[USED] -= num_freed + num_cached;
  blocks.counts[FREE] += num_freed;
  blocks.counts[CACHED] += num_cached;
  released = {num_freed, num_cached};
  return true;
}

// Whether writing the begun last page of a row means copying it first.
inline bool has_protected_tail(const RowColumns& rows, const BlockColumns& blocks, int64_t row) {
  for (int64_t group = 0; group < rows.num_groups; ++group) {
    const int32_t block = rows.tail[group * rows.num_rows + row];
    if (block < 0 || block >= blocks.num_blocks) return true;
    if (blocks.refcount[block] > 1 || blocks.indexed[block] || blocks.pins[block] > 0) return true;
  }
  return false;
}

// The sequences of a step: `num` rows and how many tokens each computes.
struct StepRows {
  const int64_t *rows, *counts;
  int64_t num;
};

inline void take_tokens(const RowColumns& rows, const StepRows& step) {
  for (int64_t i = 0; i < step.num; ++i) {
    rows.reserved[step.rows[i]] += step.counts[i];
    ++rows.open_steps[step.rows[i]];
  }
}

struct Settled {
  int64_t num_growing = 0, num_tokens = 0;
};

// The step has ended well: its tokens count. `growing`: the places in it of sequences with pages to publish. False,
// with nothing changed, where one is special or freed, or began behind the end of what counts.
inline bool settle(const RowColumns& rows, const StepRows& step, const int64_t* starts, int64_t page_size,
                   int64_t* growing, Settled& settled) {
  for (int64_t i = 0; i < step.num; ++i) {
    const int64_t row = step.rows[i];
    if (row < 0 || row >= rows.num_rows || !rows.is_alive[row] || rows.is_special[row]) return false;
    if (rows.committed[row] != starts[i] || rows.open_steps[row] < 1) return false;
  }
  for (int64_t i = 0; i < step.num; ++i) {
    const int64_t row = step.rows[i], stop = starts[i] + step.counts[i];
    --rows.open_steps[row];
    rows.committed[row] = stop;
    settled.num_tokens += step.counts[i];
    const int64_t full = stop / page_size;
    if ((full < rows.publish_until[row] ? full : rows.publish_until[row]) > rows.published[row])
      growing[settled.num_growing++] = i;
  }
  return true;
}

}  // namespace kv
