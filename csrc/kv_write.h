// Writes K and V rows of new tokens into their slots.
//
// Tokens that follow one another in a page are one *run*: for each KV head, its rows lie side by side in the block. Runs
// are cut at page borders and after MAX_RUN tokens, never by the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "cache_layer.h"
#include "isa.h"
#include "rotary.h"

namespace kv {

struct TokenRun {  // tokens first .. first + count - 1 go to slots slot, slot + 1, ... of one block
  int64_t first;
  int32_t block, slot, count;
};

constexpr int MAX_RUN = 32;

struct TokenSlots {  // where each token of a step goes: the same for every layer of a group
  std::vector<TokenRun> runs;
  int64_t tokens, num_blocks;
  int page_size;
  bool is_in_order;  // each page's runs follow one another, in the order of their slots
};

struct KVWriteCall {
  CacheLayer cache;
  Rows k, v;             // [tokens, kv_heads, head_dim], of the same dtype; converted if the cache has another one
  const Rotary* rotary;  // null, or applied to K on the way, by `rotate`
  RotateRows rotate;
  bool is_streamed;      // past the caches; REQUIRES: every row of the cache starts and ends at a multiple of 64 bytes
};

struct KVWriteKernels {
  void (*write)(const KVWriteCall& call, const TokenRun* runs, int64_t num_runs);
};

KV_DECLARE(KVWriteKernels, kv_write_kernels)

}  // namespace kv
