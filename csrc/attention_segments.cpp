#include "attention_segments.h"

#include <algorithm>
#include <string>
#include <utility>

#include "threads.h"

namespace kv {
namespace {

constexpr int64_t THREAD_BYTES = 1 << 17;  // of K and V that are worth another thread
constexpr int64_t ITEMS_PER_THREAD = 2;    // at least, so that none waits long for the last one

}  // namespace

SegmentedAttention::SegmentedAttention(PagedSequences sequence, const std::vector<int64_t>& addresses, int64_t origin)
    : sequence_(std::move(sequence)) {
  for (const int64_t address : addresses) sequence_.places.push_back(address ? address - origin : ABSENT);
  require(sequence_.starts.size() == 1, "starts: expected one sequence");
  sequence_.check();
}

// Of the page list, as far as tokens are in it.
int64_t SegmentedAttention::num_slots() const {
  const int64_t slots = sequence_.num_entries() * sequence_.page_size;
  if (sequence_.has_pages) return slots;
  return std::min(slots, sequence_.starts[0] + num_tokens() - sequence_.first_pages[0] * sequence_.page_size);
}

std::vector<Segment> SegmentedAttention::segments(int group) const {
  const int64_t page_size = sequence_.page_size;
  std::vector<Segment> found;
  if (!sequence_.is_decode(0, group)) {
    const int64_t slots = num_slots();
    for (int64_t at = 0; at < slots; at += PIECE)
      found.push_back({at / page_size, (std::min(at + PIECE, slots) + page_size - 1) / page_size});
    if (found.empty()) found.push_back({0, 0});
    return found;
  }
  const auto entry = [&](int64_t page) {  // the first one of this page or behind it
    const std::vector<int32_t>& pages = sequence_.pages;
    return sequence_.has_pages ? std::lower_bound(pages.begin(), pages.end(), page) - pages.begin()
                               : page - sequence_.first_pages[0];
  };
  for (const DecodeItem& piece : sequence_.pieces(0, 1))
    if (piece.first_key < piece.stop_key)
      found.push_back({entry(piece.first_key / page_size), entry((piece.stop_key - 1) / page_size + 1)});
    else found.push_back({0, 0});
  return found;
}

void SegmentedAttention::begin(const AttentionCall& call) {
  require(call.cache.page_size == sequence_.page_size, "layer: its page_size is not the sequence's");
  unstage();
  const int group = call.query_heads / call.cache.kv_heads;
  if (!items_ || items_->group != group) segments_ = segments(group);
  items_ = sequence_.items_for(call, items_);
  pages_ = sequence_.view();
  call_ = call;
  call_.pages = &pages_;
  int64_t floats = items_->partial_rows * KV_SELECT(decode_kernels).state_floats(call_);
  for (const PrefillItem& item : items_->prefill) floats += KV_SELECT(prefill_kernels).state_floats(call_, item);
  state_.grown(floats);
  next_ = next_part_ = 0;
  is_open_ = true;
}

void SegmentedAttention::stage(const std::vector<int64_t>& entries, const std::vector<int64_t>& addresses) {
  require(is_open_, "stage: nothing was begun");
  require(entries.size() == addresses.size(), "addresses: expected one per entry");
  for (const int64_t entry : entries)
    require(entry >= 0 && entry < sequence_.num_entries() && sequence_.places[entry] == ABSENT,
            "entries: entry " + std::to_string(entry) + " is none that has to be staged");
  for (size_t i = 0; i < entries.size(); ++i) {
    require(addresses[i] != 0, "addresses: a page needs memory");
    sequence_.places[entries[i]] = addresses[i] - reinterpret_cast<int64_t>(call_.cache.base);
    staged_.push_back(entries[i]);
  }
}

void SegmentedAttention::unstage() {
  for (const int64_t entry : staged_) sequence_.places[entry] = ABSENT;
  staged_.clear();
}

void SegmentedAttention::require_present(int64_t first, int64_t stop) const {
  for (int64_t entry = segments_[first].first_entry; entry < segments_[stop - 1].stop_entry; ++entry)
    require(sequence_.places[entry] != ABSENT, "add: the page of entry " + std::to_string(entry) + " is nowhere");
}

void SegmentedAttention::add(int64_t first, int64_t stop, int64_t part, int64_t parts) {
  require(is_open_, "add: nothing was begun");
  require(first == next_ && first < stop && stop <= static_cast<int64_t>(segments_.size()),
          "add: segments must follow one another, from 0 on");
  require(part == next_part_ && part < parts, "add: parts must follow one another, from 0 on");
  require(parts == 1 || num_items(), "add: few queries have no parts");
  require_present(first, stop);
  if (num_items()) add_slots(first, stop, num_items() * part / parts, num_items() * (part + 1) / parts);
  else add_pieces(first, stop);
  next_part_ = (part + 1) % parts;
  if (next_part_) return;
  next_ = stop;
  unstage();
}

void SegmentedAttention::add_pieces(int64_t first, int64_t stop) {
  const DecodeKernels& decode = KV_SELECT(decode_kernels);
  const int heads = call_.cache.kv_heads;
  const int64_t rows = items_->decode.empty() ? 0 : items_->decode[0].num_queries * items_->group;
  const int64_t entries = segments_[stop - 1].stop_entry - segments_[first].first_entry;
  const int threads = threads_for(entries * heads * 2 * call_.cache.half_stride, THREAD_BYTES);
  const int64_t pieces = items_->decode.empty() ? 0 : stop - first;
  // Heads of a piece apart, where there are too few pieces for all threads: a row's bits depend on no other row.
  const int64_t wanted = threads == 1 || !pieces ? 1 : (threads * ITEMS_PER_THREAD + pieces - 1) / pieces;
  const int at_once = static_cast<int>((heads + wanted - 1) / wanted), parts = (heads + at_once - 1) / at_once;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < pieces * parts; ++i) {
    DecodeItem item = items_->decode[first + i / parts];
    item.first_head = static_cast<int>(i % parts) * at_once;
    item.num_heads = std::min(at_once, heads - item.first_head);
    if (item.partial >= 0) item.partial += item.first_head * rows;
    decode.run(call_, item, state_.data());
  }
}

void SegmentedAttention::add_slots(int64_t first, int64_t stop, int64_t first_item, int64_t stop_item) {
  const PrefillKernels& prefill = KV_SELECT(prefill_kernels);
  std::vector<int64_t> offsets(num_items());
  for (int64_t i = 1; i < num_items(); ++i)
    offsets[i] = offsets[i - 1] + prefill.state_floats(call_, items_->prefill[i - 1]);
  const int threads = static_cast<int>(std::clamp<int64_t>(stop_item - first_item, 1, max_threads()));
  const bool is_last = stop == static_cast<int64_t>(segments_.size());
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = first_item; i < stop_item; ++i) {
    const PrefillSpan span{first * PIECE, std::min(stop * PIECE, num_slots()), state_.data() + offsets[i], first == 0,
                           is_last};
    prefill.run(call_, items_->prefill[i], &span);
  }
}

void SegmentedAttention::finish() {
  require(is_open_ && next_ == static_cast<int64_t>(segments_.size()), "finish: segments are missing");
  const DecodeKernels& decode = KV_SELECT(decode_kernels);
  const auto count = static_cast<int64_t>(items_->merges.size());
  const int threads = static_cast<int>(std::min<int64_t>(std::max<int64_t>(count, 1), max_threads()));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t i = 0; i < count; ++i) decode.merge(call_, items_->merges[i], state_.data());
  is_open_ = false;
}

}  // namespace kv
