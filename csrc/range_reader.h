// Many positioned reads at once, for disks that give their best with a deep queue. Threads that call pread: no slower than
// io_uring here where the processors have other work, and there in every container.
#pragma once

#include <cstdint>
#include <memory>

namespace kv {

struct Ranges {  // range i: `bytes` bytes of file fds[i] from offsets[i] on, to target + i * stride
  const int32_t* fds;
  const int64_t* offsets;
  uint8_t* target;
  int64_t stride, bytes, count;
  int64_t* done;  // [count], filled in: bytes read, fewer where the file ends; or minus the error's number
};

class RangeReader {
 public:
  explicit RangeReader(int max_threads);
  ~RangeReader();  // waits for no thread: one that hangs in a read ends with it
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;

  // Returns when every range was read, or failed. The calling thread reads too. Any number of threads may call.
  void read(const Ranges& ranges);

 private:
  struct Shared;
  static void work(std::shared_ptr<Shared> shared);
  std::shared_ptr<Shared> shared_;
  int max_threads_;
};

}  // namespace kv
