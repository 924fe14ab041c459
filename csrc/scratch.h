// Memory for floats that only grows.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace kv {

class Floats {
 public:
  Floats() = default;
  Floats(const Floats&) = delete;
  ~Floats() { std::free(data_); }
  float* grown(int64_t floats) {  // aligned to 64 bytes; what was in it may be gone
    if (floats > size_) {
      std::free(data_);
      size_ = (floats + 15) / 16 * 16 * 3 / 2 / 16 * 16 + 16;
      data_ = static_cast<float*>(std::aligned_alloc(64, size_ * sizeof(float)));
      if (!data_) std::abort();
    }
    return data_;
  }
  float* data() { return data_; }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace kv
