// Copies of whole blocks: inside a pool (copy-on-write, moves of a resize), from a pool into one buffer (gather), and back
// (scatter), with a checksum of each block on the way if asked for.
#pragma once

#include <cstdint>

#include "isa.h"

namespace kv {

struct Blocks {  // block b lies at base + b * stride
  uint8_t* base;
  int64_t num_blocks, stride, bytes;  // bytes: of one block, at most stride
};

struct BlockCopyKernels {
  void (*stream)(uint8_t* out, const uint8_t* in, int64_t bytes);  // past the caches
};

KV_DECLARE(BlockCopyKernels, block_copy_kernels)

}  // namespace kv
