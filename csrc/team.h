// A team of threads that stays together for many short phases, inside one parallel region:
//
//   Team team;
//   #pragma omp parallel num_threads(n)
//   {
//     Member member(team, omp_get_thread_num(), omp_get_num_threads());
//     member.share(pieces, [&](int64_t piece) { ... });  // each piece by one of them
//     member.meet();                                     // what was written before is read after it
//     ...
//   }
//
// OpenMP's own barrier hands a waiting thread to the kernel at once (OMP_WAIT_POLICY=passive), and waking it takes longer
// than a small phase. Here who waits spins first, and then lets other threads run, for cores may be shared.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace kv {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

class Team {
 private:
  friend class Member;
  static constexpr int SPINS = 256;  // some microseconds: longer than a fair share of a small phase differs

  // Everybody has come, and nobody has gone on: the last one begins the next phase for all.
  void meet(int size) {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (spins < SPINS) pause_briefly();
      else sched_yield();
    }
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int64_t> next_{0};  // the piece of this phase that nobody has yet
};

class Member {  // one thread's hand in it
 public:
  Member(Team& team, int number, int size) : team_(team), number_(number), size_(size) {}

  int number() const { return number_; }
  int size() const { return size_; }

  void meet() {
    if (size_ > 1) team_.meet(size_);
  }

  // Runs `run` for pieces 0 .. pieces - 1, each in one of the threads: whoever is free takes the next one. REQUIRES: at most
  // once between two meetings.
  template <class F>
  void share(int64_t pieces, F run) {
    if (size_ == 1) {
      for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
      return;
    }
    for (int64_t piece; (piece = team_.next_.fetch_add(1, std::memory_order_relaxed)) < pieces;) run(piece);
  }

  // The same with a fixed part for each thread: run(begin, end).
  template <class F>
  void split(int64_t count, F run) const {
    const int64_t begin = count * number_ / size_, end = count * (number_ + 1) / size_;
    if (begin < end) run(begin, end);
  }

 private:
  Team& team_;
  const int number_, size_;
};

}  // namespace kv
