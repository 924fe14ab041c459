#include "kv_write_quantized.h"

#include <algorithm>

#include "threads.h"

namespace kv {
namespace {

constexpr int64_t ELEMENTS_PER_THREAD = 1 << 18;
constexpr int64_t RUNS_PER_PIECE = 8;

}  // namespace

void kv_write_quantized(const KVWriteCall& call, const TokenSlots& slots) {
  const auto write = KV_SELECT(kv_write_quantized_kernels).write;
  const auto num_runs = static_cast<int64_t>(slots.runs.size());
  const int threads = threads_for(2 * slots.tokens * call.cache.kv_heads * call.cache.head_dim, ELEMENTS_PER_THREAD);
  if (threads == 1) return write(call, slots, 0, num_runs);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t first = 0; first < num_runs; first += RUNS_PER_PIECE)
    write(call, slots, first, std::min(num_runs, first + RUNS_PER_PIECE));
}

}  // namespace kv
