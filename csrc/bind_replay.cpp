#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "replay.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <class Item>
using Array = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using First = Array<const int64_t>;
using Pages = Array<const int32_t>;
using Counts = Array<int32_t>;

TraceView view_of(const First& first, const Pages& pages, int64_t num_blocks) {
  if (first.shape(0) < 1) throw nb::value_error("first must have one entry more than there are requests");
  const auto num_requests = static_cast<int64_t>(first.shape(0)) - 1;
  const auto num_references = static_cast<int64_t>(pages.shape(0));
  if (num_requests >= INT32_MAX || num_blocks < 0 || num_blocks > INT32_MAX)
    throw nb::value_error("more requests or blocks than int32 can count");
  if (first.data()[0] != 0 || first.data()[num_requests] != num_references)
    throw nb::value_error("first must go from 0 to the number of pages");
  for (int64_t r = 0; r < num_requests; ++r) {
    const int64_t length = first.data()[r + 1] - first.data()[r];
    if (length < 0 || length > INT32_MAX) throw nb::value_error("first must not fall, nor rise by more than int32");
  }
  for (int64_t i = 0; i < num_references; ++i)
    if (static_cast<uint32_t>(pages.data()[i]) >= static_cast<uint64_t>(num_blocks))
      throw nb::index_error("pages must be numbers from 0 to num_blocks - 1");
  return {first.data(), pages.data(), num_requests, num_blocks};
}

template <auto replay>
void replayed(const First& first, const Pages& pages, int64_t num_blocks, int64_t capacity, const Counts& hits,
              const Counts& evictions) {
  const TraceView trace = view_of(first, pages, num_blocks);
  if (capacity < 1) throw nb::value_error("capacity must be at least 1");
  if (hits.shape(0) != first.shape(0) - 1 || evictions.shape(0) != first.shape(0) - 1)
    throw nb::value_error("hits and evictions must have one entry a request");
  nb::gil_scoped_release release;
  replay(trace, capacity, {hits.data(), evictions.data()});
}

}  // namespace

void bind_replay(nb::module_& m) {
  m.def("replay_lru", &replayed<replay_lru>, "first"_a.noconvert(), "pages"_a.noconvert(), "num_blocks"_a, "capacity"_a,
        "hits"_a.noconvert(), "evictions"_a.noconvert(), "LRU: fills hits and evictions (int32, one a request).");
  m.def("replay_min", &replayed<replay_min>, "first"_a.noconvert(), "pages"_a.noconvert(), "num_blocks"_a, "capacity"_a,
        "hits"_a.noconvert(), "evictions"_a.noconvert(), "The offline optimum; otherwise as replay_lru.");
}

}  // namespace kv
