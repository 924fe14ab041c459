// Writes K and V rows of new tokens into quantized pages: finds the scale of each page, KV head and half, brings the slots
// written earlier to it where it grew, and rounds. The bytes are those of src/kvpager/tiers/quantized.py.
#pragma once

#include "kv_write.h"

namespace kv {

struct KVWriteQuantizedKernels {
  // All runs of the pages that begin among runs first .. stop - 1: a page's tokens may be cut into several runs, which
  // share a scale and are written together.
  void (*write)(const KVWriteCall& call, const TokenSlots& slots, int64_t first, int64_t stop);
};

KV_DECLARE(KVWriteQuantizedKernels, kv_write_quantized_kernels)

// With as many threads as pay. REQUIRES: each page's runs follow one another, in the order of their slots.
void kv_write_quantized(const KVWriteCall& call, const TokenSlots& slots);

}  // namespace kv
