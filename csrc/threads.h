// How many threads a kernel may use: OpenMP's own setting (OMP_NUM_THREADS, torch.set_num_threads: torch and this module
// share one libgomp), and never more than the control group's CPU quota.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace kv {

int cpu_quota();  // whole CPUs the control group allows, rounded up; a large number where there is no quota

inline int max_threads() { return std::max(1, std::min(omp_get_max_threads(), cpu_quota())); }

// Threads for `work` units when one thread should have at least `least` of them: waking a thread costs microseconds.
inline int threads_for(int64_t work, int64_t least) {
  return static_cast<int>(std::clamp<int64_t>(work / std::max<int64_t>(least, 1), 1, max_threads()));
}

}  // namespace kv
