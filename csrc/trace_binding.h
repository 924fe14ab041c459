// What the bindings of replays share: the arrays of a trace, checked, because replays trust them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>

namespace kv {

template <class Item>
using TraceArray = nanobind::ndarray<const Item, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Counts = nanobind::ndarray<int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The memory of an array.
struct Memory {
  template <class Array>
  explicit Memory(const Array& array)
      : begin(reinterpret_cast<uintptr_t>(array.data())), end(begin + array.nbytes()), item(array.itemsize()) {}

  bool overlaps(const Memory& other) const { return begin < other.end && other.begin < end; }

  uintptr_t begin, end;
  size_t item;
};

// A replay writes counts while it reads the trace.
inline void check_memory(std::initializer_list<Memory> read, const Counts& hits, const Counts& evictions) {
  const Memory written[]{Memory(hits), Memory(evictions)};
  bool shared = written[0].overlaps(written[1]), odd = written[0].begin % 4 || written[1].begin % 4;
  for (const Memory& each : read) {
    shared = shared || each.overlaps(written[0]) || each.overlaps(written[1]);
    odd = odd || each.begin % each.item;
  }
  if (shared) throw nanobind::value_error("hits and evictions must have memory of their own");
  if (odd) throw nanobind::value_error("the arrays must be aligned: copy them");
}

// Request r reads pages[first[r] .. first[r + 1] - 1], of pages 0 .. num_blocks - 1.
inline void check_chains(const TraceArray<int64_t>& first, const TraceArray<int32_t>& pages, int64_t num_blocks) {
  if (first.shape(0) < 1) throw nanobind::value_error("first must have one entry more than there are requests");
  const auto num_requests = static_cast<int64_t>(first.shape(0)) - 1;
  const auto num_references = static_cast<int64_t>(pages.shape(0));
  if (num_requests >= INT32_MAX || num_blocks < 0 || num_blocks > INT32_MAX)
    throw nanobind::value_error("more requests or blocks than int32 can count");
  if (first.data()[0] != 0 || first.data()[num_requests] != num_references)
    throw nanobind::value_error("first must go from 0 to the number of pages");
  for (int64_t r = 0; r < num_requests; ++r) {
    const int64_t begin = first.data()[r], end = first.data()[r + 1];
    if (end < begin || end - begin > INT32_MAX) throw nanobind::value_error("first must not fall, nor rise by more than int32");
  }
  for (int64_t i = 0; i < num_references; ++i)
    if (static_cast<uint32_t>(pages.data()[i]) >= static_cast<uint64_t>(num_blocks))
      throw nanobind::index_error("pages must be numbers from 0 to num_blocks - 1");
}

inline void check_counts(const Counts& hits, const Counts& evictions, size_t num_requests) {
  if (hits.shape(0) != num_requests || evictions.shape(0) != num_requests)
    throw nanobind::value_error("hits and evictions must have one entry a request");
}

}  // namespace kv
