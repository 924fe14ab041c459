// Attention of one sequence whose pages need not all be in memory at once: its page list is cut into segments, and one
// after the other is attended to once its pages lie somewhere. What is carried along has the bits that attention to the
// whole list would have: decode pieces are merged at the end, prefill goes on where it stopped.
//
//   begin(call)                              a layer of the group
//   stage(entries, addresses), add(i, j)     segments i .. j-1, in order; what was staged counts for this `add` only
//                                            (many queries: in as many calls as wanted, for some of them each)
//   finish()                                 writes what is not written yet
#pragma once

#include <memory>
#include <vector>

#include "attention_cut.h"
#include "scratch.h"

namespace kv {

struct Segment {  // of the page list; neighbours may share a page
  int64_t first_entry, stop_entry;
};

// One thread at a time.
class SegmentedAttention {
 public:
  // `sequence`: one. `addresses` [entries]: of the first byte of each page, 0 where it has to be staged; `origin`: of
  // block 0. Throws std::invalid_argument naming the argument.
  SegmentedAttention(PagedSequences sequence, const std::vector<int64_t>& addresses, int64_t origin);

  int64_t num_tokens() const { return sequence_.query_offsets.back(); }
  std::vector<Segment> segments(int group) const;  // at least one

  // REQUIRES: q, out, lse and sinks of the right shapes, which stay until finish(). Ends what was begun before.
  void begin(const AttentionCall& call);
  void stage(const std::vector<int64_t>& entries, const std::vector<int64_t>& addresses);  // of the layer's part
  int64_t num_items() const { return items_ ? static_cast<int64_t>(items_->prefill.size()) : 0; }  // 0: few queries
  // Part `part` of `parts`, about equal shares of the items; all of them, in order, before the next segments.
  void add(int64_t first, int64_t stop, int64_t part, int64_t parts);
  void finish();

 private:
  static constexpr int64_t ABSENT = INT64_MIN;

  int64_t num_slots() const;
  void require_present(int64_t first, int64_t stop) const;
  void unstage();
  void add_pieces(int64_t first, int64_t stop);
  void add_slots(int64_t first, int64_t stop, int64_t first_item, int64_t stop_item);

  PagedSequences sequence_;  // its places: bytes from block 0, or ABSENT
  std::shared_ptr<const WorkItems> items_;
  AttentionCall call_{};
  Pages pages_{};
  std::vector<Segment> segments_;
  std::vector<int64_t> staged_;  // entries
  Floats state_;
  bool is_open_ = false;
  int64_t next_ = 0;       // segment
  int64_t next_part_ = 0;  // of it
};

}  // namespace kv
