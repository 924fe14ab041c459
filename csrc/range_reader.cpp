#include "range_reader.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace kv {
namespace {

int64_t read_range(const Ranges& ranges, int64_t i) {
  uint8_t* target = ranges.target + i * ranges.stride;
  int64_t done = 0;
  while (done < ranges.bytes) {
    const ssize_t got = pread(ranges.fds[i], target + done, ranges.bytes - done, ranges.offsets[i] + done);
    if (got > 0)
      done += got;
    else if (got == 0)
      break;
    else if (errno != EINTR)
      return -errno;
  }
  return done;
}

struct Batch {  // one call; lives on its caller's stack until `left` is 0
  const Ranges& ranges;
  int64_t next = 0, left;
  std::condition_variable ended{};
};

}  // namespace

struct RangeReader::Shared {
  std::mutex mutex;
  std::condition_variable wanted;
  std::deque<Batch*> batches;  // that have ranges nobody has taken
  int threads = 0, idle = 0;
  bool is_closed = false;

  // The next range of a batch, or -1. REQUIRES: the mutex is held.
  int64_t take(Batch& batch) {
    if (batch.next == batch.ranges.count) return -1;
    if (batch.next + 1 == batch.ranges.count) batches.erase(std::find(batches.begin(), batches.end(), &batch));
    return batch.next++;
  }

  void read(Batch& batch, int64_t i, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    batch.ranges.done[i] = read_range(batch.ranges, i);
    lock.lock();
    if (!--batch.left) batch.ended.notify_one();  // under the mutex: its caller may end it right after
  }
};

RangeReader::RangeReader(int max_threads) : shared_(std::make_shared<Shared>()), max_threads_(max_threads) {}

RangeReader::~RangeReader() {
  std::lock_guard lock(shared_->mutex);
  shared_->is_closed = true;
  shared_->wanted.notify_all();
}

void RangeReader::read(const Ranges& ranges) {
  if (!ranges.count) return;
  Shared& shared = *shared_;
  Batch batch{ranges, 0, ranges.count};
  std::unique_lock lock(shared.mutex);
  shared.batches.push_back(&batch);
  for (int64_t more = ranges.count - 1 - shared.idle; more > 0 && shared.threads < max_threads_; --more) {
    try {
      std::thread(work, shared_).detach();
    } catch (const std::system_error&) {
      break;  // as many as the system gives
    }
    ++shared.threads;
  }
  for (int64_t wake = std::min<int64_t>(ranges.count - 1, shared.idle); wake > 0; --wake) shared.wanted.notify_one();
  for (int64_t i; (i = shared.take(batch)) >= 0;) shared.read(batch, i, lock);
  batch.ended.wait(lock, [&] { return !batch.left; });
}

void RangeReader::work(std::shared_ptr<Shared> shared) {
  std::unique_lock lock(shared->mutex);
  while (!shared->is_closed) {
    if (shared->batches.empty()) {
      ++shared->idle;
      shared->wanted.wait(lock);
      --shared->idle;
      continue;
    }
    Batch& batch = *shared->batches.front();
    shared->read(batch, shared->take(batch), lock);
  }
}

}  // namespace kv
