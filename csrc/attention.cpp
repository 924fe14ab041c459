#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "attention_plan.h"
#include "threads.h"

namespace kv {
namespace {

constexpr int64_t PIECE = 2048;        // a long context is cut at multiples of it, whoever computes the pieces
constexpr int64_t DECODE_ROWS = 16;    // queries x group up to which a sequence is worth cutting over its context
constexpr int64_t QUERIES_PER_ITEM = 16;  // where there is no prefill kernel
constexpr int64_t THREAD_BYTES = 1 << 17;  // of K and V that are worth another thread

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

void require_offsets(const char* name, const std::vector<int64_t>& offsets, size_t sequences, int64_t end) {
  const std::string argument = name;
  require(offsets.size() == sequences + 1, argument + ": expected one more than there are sequences");
  require(offsets.front() == 0, argument + " must begin with 0");
  require(std::is_sorted(offsets.begin(), offsets.end()), argument + " must not decrease");
  require(end < 0 || offsets.back() == end, argument + " must end with the number of blocks");
}

struct Buffer {
  float* data = nullptr;
  int64_t size = 0;
  ~Buffer() { std::free(data); }
  float* grown(int64_t floats) {
    if (floats > size) {
      std::free(data);
      size = (floats + 15) / 16 * 16 * 3 / 2 / 16 * 16 + 16;
      data = static_cast<float*>(std::aligned_alloc(64, size * sizeof(float)));
      if (!data) std::abort();
    }
    return data;
  }
};

}  // namespace

float* thread_scratch(int64_t floats) {
  thread_local Buffer buffer;
  return buffer.grown(floats);
}

AttentionPlan::AttentionPlan(std::vector<int64_t> query_offsets, std::vector<int64_t> starts,
                             std::vector<int64_t> table_offsets, std::vector<int32_t> blocks,
                             std::vector<int32_t> pages, bool has_pages, int64_t window, int64_t page_size,
                             int64_t num_blocks)
    : query_offsets_(std::move(query_offsets)),
      starts_(std::move(starts)),
      table_offsets_(std::move(table_offsets)),
      blocks_(std::move(blocks)),
      pages_(std::move(pages)),
      has_pages_(has_pages),
      window_(window),
      page_size_(page_size),
      num_blocks_(num_blocks) {
  constexpr int64_t FAR = int64_t{1} << 31;  // positions beyond it are nobody's
  require(page_size >= 1 && page_size < FAR, "page_size must be at least 1");
  require(window >= 0, "window must not be negative; 0 is none");
  require(num_blocks >= 1, "num_blocks must be at least 1");
  require_offsets("query_offsets", query_offsets_, starts_.size(), -1);
  require_offsets("table_offsets", table_offsets_, starts_.size(), static_cast<int64_t>(blocks_.size()));
  for (const int32_t block : blocks_)
    require(block >= 0 && block < num_blocks,
            "blocks: block " + std::to_string(block) + " is not one of " + std::to_string(num_blocks));
  require(!has_pages || pages_.size() == blocks_.size(), "pages: expected one per block");
  for (size_t i = 0; i < starts_.size(); ++i) {
    const std::string which = " of sequence " + std::to_string(i);
    require(starts_[i] >= 0 && starts_[i] < FAR, "starts: start" + which + " is out of range");
    const int64_t stop = starts_[i] + query_offsets_[i + 1] - query_offsets_[i];
    require(stop <= FAR, "query_offsets: length" + which + " is out of range");
    first_pages_.push_back(window ? std::max<int64_t>(0, starts_[i] - window + 1) / page_size : 0);
    const int64_t begin = table_offsets_[i], end = table_offsets_[i + 1];
    if (has_pages) {
      for (int64_t e = begin; e < end; ++e)
        require(pages_[e] >= 0 && (e == begin || pages_[e] > pages_[e - 1]), "pages" + which + " must increase, from 0 on");
    } else if (stop > starts_[i]) {
      require((first_pages_[i] + end - begin) * page_size >= stop,
              "table_offsets: too few blocks for what the queries" + which + " see");
    }
  }
}

void AttentionPlan::check(const CacheLayer& layer) const {
  require(layer.page_size == page_size_, "layer: its page_size is not the plan's");
  require(layer.num_blocks >= num_blocks_, "layer: it has fewer blocks than the plan");
}

Pages AttentionPlan::view() const {
  return {static_cast<int64_t>(starts_.size()), query_offsets_.data(), starts_.data(), table_offsets_.data(),
          blocks_.data(), has_pages_ ? pages_.data() : nullptr, first_pages_.data(), window_};
}

std::shared_ptr<const WorkItems> AttentionPlan::items_for(AttentionCall call) {
  const Pages pages = view();
  call.pages = &pages;
  const int group = call.query_heads / call.cache.kv_heads;
  const int64_t queries = KV_SELECT(prefill_kernels).queries_per_item(call);
  if (!items_ || items_->group != group || items_->kv_heads != call.cache.kv_heads ||
      items_->queries_per_prefill != queries)
    items_ = std::make_shared<const WorkItems>(cut(group, call.cache.kv_heads, queries));
  return items_;
}

WorkItems AttentionPlan::cut(int group, int kv_heads, int64_t queries_per_prefill) const {
  WorkItems items{.group = group, .kv_heads = kv_heads, .queries_per_prefill = queries_per_prefill};
  for (int64_t s = 0; s < static_cast<int64_t>(starts_.size()); ++s) {
    const int64_t begin = query_offsets_[s], end = query_offsets_[s + 1], stop = starts_[s] + end - begin;
    const int64_t first_key = window_ ? std::max<int64_t>(0, starts_[s] - window_ + 1) : 0;
    if (begin == end) continue;
    if ((end - begin) * group > DECODE_ROWS) {
      const int64_t step = queries_per_prefill ? queries_per_prefill : QUERIES_PER_ITEM;
      for (int64_t at = (end - begin - 1) / step * step; at >= 0; at -= step) {  // the last ones see most
        const int64_t first = begin + at, count = std::min(step, end - first), position = starts_[s] + at;
        const int64_t seen = window_ ? std::max<int64_t>(0, position - window_ + 1) : 0;
        for (int head = 0; head < kv_heads; ++head)
          if (queries_per_prefill) items.prefill.push_back({s, first, count, head});
          else items.decode.push_back({s, first, count, head, 1, seen, position + count, -1});
      }
      continue;
    }
    std::vector<DecodeItem> pieces;
    int64_t entry = table_offsets_[s];
    for (int64_t at = first_key / PIECE * PIECE; at < stop; at += PIECE) {
      if (has_pages_) {  // a piece without pages is left out
        while (entry < table_offsets_[s + 1] && (pages_[entry] + int64_t{1}) * page_size_ <= std::max(at, first_key)) ++entry;
        if (entry == table_offsets_[s + 1] || pages_[entry] * page_size_ >= std::min(stop, at + PIECE)) continue;
      }
      pieces.push_back({s, begin, end - begin, 0, kv_heads, std::max(at, first_key), std::min(stop, at + PIECE), -1});
    }
    if (pieces.empty()) pieces.push_back({s, begin, end - begin, 0, kv_heads, 0, 0, -1});
    if (pieces.size() > 1) {
      const int64_t rows = (end - begin) * group;
      for (int head = 0; head < kv_heads; ++head)
        items.merges.push_back({{s, begin, end - begin, head, 1, 0, 0, items.partial_rows + head * rows},
                                static_cast<int64_t>(pieces.size()), kv_heads * rows});
      for (DecodeItem& piece : pieces) {
        piece.partial = items.partial_rows;
        items.partial_rows += kv_heads * rows;
      }
    }
    items.decode.insert(items.decode.end(), pieces.begin(), pieces.end());
  }
  return items;
}

void AttentionPlan::run(AttentionCall call, const WorkItems& items) const {
  const Pages pages = view();
  call.pages = &pages;
  const DecodeKernels& decode = KV_SELECT(decode_kernels);
  const PrefillKernels& prefill = KV_SELECT(prefill_kernels);
  thread_local Buffer buffer;
  float* partials = buffer.grown(items.partial_rows * decode.state_floats(call));
  const auto num_prefill = static_cast<int64_t>(items.prefill.size()), num_decode = static_cast<int64_t>(items.decode.size());
  const auto num_merges = static_cast<int64_t>(items.merges.size());
  const int64_t bytes = static_cast<int64_t>(blocks_.size()) * page_size_ * call.cache.kv_heads * call.cache.half_stride;
  const int threads = static_cast<int>(
      std::min<int64_t>(num_prefill + num_decode, num_prefill ? max_threads() : threads_for(bytes, THREAD_BYTES)));
#pragma omp parallel num_threads(std::max(1, threads))
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_prefill + num_decode; ++i) {
      if (i < num_prefill) prefill.run(call, items.prefill[i]);
      else decode.run(call, items.decode[i - num_prefill], partials);
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < num_merges; ++i) decode.merge(call, items.merges[i], partials);
  }
}

}  // namespace kv
