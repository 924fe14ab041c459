// How many threads a kernel may use. OpenMP's own setting (OMP_NUM_THREADS, torch.set_num_threads: torch and this module
// share one libgomp), and never more than
//   - the places threads are bound to (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), or where they are not bound, the
//     processors the calling thread may run on (taskset);
//   - the CPU quota of the process's control group and all groups above it.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace kv {

constexpr int NO_QUOTA = 1 << 20;

int cpu_quota();  // whole CPUs the control groups allow, rounded up; NO_QUOTA where there is none. Read once
int read_cpu_quota(const std::string& root);  // the same, looked up below another root folder ("" is the real one)

inline int max_threads() {
  // Where threads are bound, the calling thread's own mask is one place only and says nothing about the others.
  const bool is_bound = omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0;
  const int processors = is_bound ? omp_get_num_places() : omp_get_num_procs();
  return std::max(1, std::min({omp_get_max_threads(), processors, cpu_quota()}));
}

// Threads for `work` units when one thread should have at least `least` of them: waking a thread costs microseconds.
// Little work asks nobody: reading the affinity is a system call.
inline int threads_for(int64_t work, int64_t least) {
  const int64_t wanted = work / std::max<int64_t>(least, 1);
  return wanted <= 1 ? 1 : static_cast<int>(std::min<int64_t>(wanted, max_threads()));
}

}  // namespace kv
