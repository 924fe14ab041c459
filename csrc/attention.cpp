#include <algorithm>
#include <string>
#include <utility>

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
}

void AttentionPlan::check(const CacheLayer& layer) const {
  require(layer.page_size == sequences_.page_size, "layer: its page_size is not the plan's");
  require(layer.num_blocks >= num_blocks_, "layer: it has fewer blocks than the plan");
}

void AttentionPlan::run(AttentionCall call, const WorkItems& items) const {
  const Pages pages = sequences_.view();
  call.pages = &pages;
  const DecodeKernels& decode = KV_SELECT(decode_kernels);
  const PrefillKernels& prefill = KV_SELECT(prefill_kernels);
  thread_local Floats buffer;
  float* partials = buffer.grown(items.partial_rows * decode.state_floats(call));
  const auto num_prefill = static_cast<int64_t>(items.prefill.size()), num_decode = static_cast<int64_t>(items.decode.size());
  const auto num_merges = static_cast<int64_t>(items.merges.size());
  const int64_t bytes = sequences_.num_entries() * sequences_.page_size * call.cache.kv_heads * call.cache.half_stride;
  const int threads = static_cast<int>(
      std::min<int64_t>(num_prefill + num_decode, num_prefill ? max_threads() : threads_for(bytes, THREAD_BYTES)));
#pragma omp parallel num_threads(std::max(1, threads))
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_prefill + num_decode; ++i) {
      if (i < num_prefill) prefill.run(call, items.prefill[i], nullptr);
      else decode.run(call, items.decode[i - num_prefill], partials);
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < num_merges; ++i) decode.merge(call, items.merges[i], partials);
  }
}

}  // namespace kv
