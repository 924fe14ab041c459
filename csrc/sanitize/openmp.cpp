// A small OpenMP runtime for ThreadSanitizer builds only, with the entry points that GCC calls (libgomp's ABI).
//
// libgomp synchronises by futexes that the sanitizer can't see, so every parallel region would look like a race. Here
// fork and join are std::thread, a barrier is std::barrier, and work is given out by relaxed counters, which order
// nothing: so a race that OpenMP's rules allow to happen is reported, and nothing else. Entry points that the kernels
// don't use are left out: tests/native/sanitize.py refuses a module that would ask libgomp for one.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int MOST_CONSTRUCTS = 256;  // loops and `single`s that one parallel region may meet

struct Loop {
  long start, end, increment, chunk;
};

struct Team {
  explicit Team(int size) : size(size), barrier(size) {}
  const int size;
  std::barrier<> barrier;
  std::atomic<long> given[MOST_CONSTRUCTS] = {};  // of the n-th loop: pieces given out
  std::atomic<bool> taken[MOST_CONSTRUCTS] = {};  // of the n-th `single`
};

struct Place {  // where a thread is
  Team* team = nullptr;
  int number = 0;
  int loops = 0, singles = 0;  // constructs met in this region so far
  Loop loop = {};
};

thread_local Place here;
std::mutex critical, atomic;

int threads_wanted() {  // as torch sets them, in the libgomp that it loaded
  static const auto theirs = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  if (theirs) return theirs();
  const char* number = std::getenv("OMP_NUM_THREADS");
  return std::max(1, number ? std::atoi(number) : static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel(void (*function)(void*), void* data, unsigned wanted, Loop loop) {
  const Place outer = here;
  Team team(outer.team ? 1 : wanted ? static_cast<int>(wanted) : threads_wanted());  // a nested region has one thread
  const auto work = [&](int number) {
    here = Place{&team, number, 0, 0, loop};
    function(data);
  };
  std::vector<std::thread> others;
  for (int i = 1; i < team.size; ++i) others.emplace_back(work, i);
  work(0);
  for (auto& other : others) other.join();
  here = outer;
}

bool next_piece(long* from, long* to) {
  const Loop& loop = here.loop;
  const long step = loop.increment * std::max(loop.chunk, 1L);
  const long at = loop.start + step * here.team->given[here.loops].fetch_add(1, std::memory_order_relaxed);
  if (loop.increment > 0 ? at >= loop.end : at <= loop.end) return false;
  *from = at;
  *to = loop.increment > 0 ? std::min(at + step, loop.end) : std::max(at + step, loop.end);
  return true;
}

void end_loop() {
  if (++here.loops == MOST_CONSTRUCTS) std::abort();
}

}  // namespace

extern "C" {

int omp_get_thread_num() { return here.number; }
int omp_get_num_threads() { return here.team ? here.team->size : 1; }
int omp_get_max_threads() { return threads_wanted(); }
int omp_get_num_procs() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }
int omp_get_proc_bind() { return 0; }  // omp_proc_bind_false: threads are not bound
int omp_get_num_places() { return 0; }
int omp_in_parallel() { return here.team && here.team->size > 1; }

void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
  parallel(function, data, threads, {});
}
void GOMP_barrier() {
  if (here.team) here.team->barrier.arrive_and_wait();
}
void GOMP_critical_start() { critical.lock(); }
void GOMP_critical_end() { critical.unlock(); }
void GOMP_atomic_start() { atomic.lock(); }
void GOMP_atomic_end() { atomic.unlock(); }
bool GOMP_single_start() {
  if (here.singles == MOST_CONSTRUCTS) std::abort();
  return !here.team->taken[here.singles++].exchange(true, std::memory_order_relaxed);
}

bool GOMP_loop_dynamic_start(long start, long end, long increment, long chunk, long* from, long* to) {
  here.loop = {start, end, increment, chunk};
  return next_piece(from, to);
}
bool GOMP_loop_dynamic_next(long* from, long* to) { return next_piece(from, to); }
bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long increment, long chunk, long* from, long* to) {
  return GOMP_loop_dynamic_start(start, end, increment, chunk, from, to);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* from, long* to) { return next_piece(from, to); }
void GOMP_loop_end_nowait() { end_loop(); }
void GOMP_loop_end() {
  end_loop();
  GOMP_barrier();
}
void GOMP_parallel_loop_dynamic(void (*function)(void*), void* data, unsigned threads, long start, long end,
                                long increment, long chunk, unsigned) {
  parallel(function, data, threads, {start, end, increment, chunk});
}
void GOMP_parallel_loop_nonmonotonic_dynamic(void (*function)(void*), void* data, unsigned threads, long start,
                                             long end, long increment, long chunk, unsigned) {
  parallel(function, data, threads, {start, end, increment, chunk});
}
}
