// Which pages a decode step attends to, per KV head, from the scores of their digests (digest.h).
//
// A page's depth for a query head is how far its rank lies below the log of the sum of exp(rank) over all pages: minus
// the log of its share, were the ranks the scores. Its depth for a KV head is the least one of the group's query heads:
// heads whose scores spread little do not lose against heads whose scores spread much, as they would by the ranks
// themselves, and a page that one head needs is not averaged away.
//
// Always in: pages [0, num_sinks) and [first_recent, num_pages). Of the others those of least depth: as many as make
// `wanted` in all, or, where `mass` is above 0, as few as leave out an estimated share of at most 1 - mass of every query
// head (by the estimates, over the pages that have a digest).
#pragma once

#include <cstdint>

#include "isa.h"

namespace kv {

struct SelectCall {
  const float* ranks;  // [query_heads][stride]
  float* estimates;     // the same; overwritten
  int64_t stride;       // a multiple of 16
  int group;            // query heads per KV head
  int64_t num_digests, num_pages;  // the first pages have a digest; all of them
  int64_t num_sinks, first_recent;
  int64_t wanted;
  float mass;
  int page_size;
  float* depths;       // [kv_heads][stride]: room
  int32_t* pages;      // [kv_heads][num_pages]: the selected ones, ascending
  int64_t* counts;     // [kv_heads]
  float* log_skipped;  // [query_heads]: log of the sum of exp(score) over keys left out, estimated; -inf: none
};

struct SelectKernels {
  void (*select)(const SelectCall& call, int kv_head);
};

KV_DECLARE(SelectKernels, select_kernels)

}  // namespace kv
