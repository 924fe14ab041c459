#include <nanobind/nanobind.h>

#include "replay.h"
#include "trace_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <auto replay>
void replayed(const TraceArray<int64_t>& first, const TraceArray<int32_t>& pages, int64_t num_blocks, int64_t capacity,
              const Counts& hits, const Counts& evictions) {
  if (capacity < 1) throw nb::value_error("capacity must be at least 1");
  check_memory({Memory(first), Memory(pages)}, hits, evictions);
  check_chains(first, pages, num_blocks);
  const auto num_requests = static_cast<int64_t>(first.shape(0)) - 1;
  check_counts(hits, evictions, static_cast<size_t>(num_requests));
  nb::gil_scoped_release release;
  replay({first.data(), pages.data(), num_requests, num_blocks}, capacity, {hits.data(), evictions.data()});
}

}  // namespace

void bind_replay(nb::module_& m) {
  m.def("replay_lru", &replayed<replay_lru>, "first"_a.noconvert(), "pages"_a.noconvert(), "num_blocks"_a, "capacity"_a,
        "hits"_a.noconvert(), "evictions"_a.noconvert(), "LRU: fills hits and evictions (int32, one a request).");
  m.def("replay_min", &replayed<replay_min>, "first"_a.noconvert(), "pages"_a.noconvert(), "num_blocks"_a, "capacity"_a,
        "hits"_a.noconvert(), "evictions"_a.noconvert(), "The offline optimum; otherwise as replay_lru.");
}

}  // namespace kv
