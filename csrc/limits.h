// What the memory of this machine allows: the yardstick of the kernels' benchmarks.
#pragma once

#include <cstdint>

#include "isa.h"

namespace kv {

struct LimitKernels {
  uint64_t (*read)(const uint8_t* data, int64_t bytes);  // reads every byte once; returns something that depends on it
  // Copies with stores that go around the caches, where the set has them. `target` is aligned to 64 bytes.
  void (*stream)(uint8_t* target, const uint8_t* source, int64_t bytes);
};

KV_DECLARE(LimitKernels, limit_kernels)

}  // namespace kv
