#include <algorithm>
#include <string>
#include <utility>

#include "attention_pieces.h"
#include "attention_plan.h"
#include "scratch.h"
#include "threads.h"

namespace kv {
namespace {

constexpr int64_t THREAD_BYTES = 1 << 17;  // of K and V that are worth another thread

}  // namespace

float* thread_scratch(int64_t floats) {
  thread_local Floats buffer;
  return buffer.grown(floats);
}

AttentionPlan::AttentionPlan(PagedSequences sequences, int64_t num_blocks)
    : sequences_(std::move(sequences)), num_blocks_(num_blocks) {
  require(num_blocks >= 1, "num_blocks must be at least 1");
  for (const int32_t block : sequences_.blocks)
    require(block >= 0 && block < num_blocks,
            "blocks: block " + std::to_string(block) + " is not one of " + std::to_string(num_blocks));
  sequences_.check();
  pages_ = sequences_.view();
}

void AttentionPlan::check(const CacheLayer& layer) const {
  require(layer.page_size == sequences_.page_size, "layer: its page_size is not the plan's");
  require(layer.num_blocks >= num_blocks_, "layer: it has fewer blocks than the plan");
}

void AttentionPlan::run(AttentionCall call, std::shared_ptr<const WorkItems> items) const {
  call.pages = &pages_;
  const auto most = static_cast<int64_t>(items->prefill.size() + items->decode.size() * call.cache.kv_heads);
  const int64_t bytes = sequences_.num_entries() * sequences_.page_size * call.cache.kv_heads * call.cache.half_stride;
  const int wanted = items->prefill.empty() ? threads_for(bytes, THREAD_BYTES) : max_threads();
  const int threads = static_cast<int>(std::clamp<int64_t>(most, 1, wanted));
  const AttentionPieces pieces(call, std::move(items), threads);
  thread_local Floats buffer;
  float* partials = buffer.grown(pieces.partial_floats());
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < pieces.num_pieces(); ++i) pieces.attend(i, partials);
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < pieces.num_merges(); ++i) pieces.merge(i, partials);
  }
}

}  // namespace kv
