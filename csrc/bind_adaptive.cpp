#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "adaptive.h"
#include "adaptive_replay.h"
#include "ids_binding.h"
#include "trace_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

using adaptive::Policy;
using Keys = nb::ndarray<const uint64_t, nb::ndim<1>, nb::device::cpu>;

constexpr int64_t MAX_BLOCKS = int64_t{1} << 28;  // several entries a block are counted in int32

std::vector<int64_t> blocks_of(const Policy& policy, const Ids& ids) {
  return read_ids("blocks", ids, policy.num_blocks());
}

int64_t checked(const Policy& policy, int64_t block) {
  if (block < 0 || block >= policy.num_blocks()) throw nb::index_error("no such block");
  return block;
}

double checked_time(double seconds) {
  if (!std::isfinite(seconds)) throw nb::value_error("times must be finite");
  return seconds;
}

std::vector<uint64_t> read_keys(const Keys& keys, size_t count) {
  if (keys.shape(0) != count) throw nb::value_error("as many keys as blocks");
  std::vector<uint64_t> found(count);
  const auto* data = reinterpret_cast<const char*>(keys.data());
  const int64_t stride = keys.stride(0) * static_cast<int64_t>(sizeof(uint64_t));
  for (size_t i = 0; i < count; ++i) std::memcpy(&found[i], data + static_cast<int64_t>(i) * stride, sizeof(uint64_t));
  return found;
}

adaptive::History history_of(double last_used, int uses, int kind) {
  if (kind < 0 || kind >= adaptive::NUM_KINDS) throw nb::value_error("no such kind of page");
  if (uses < 0) throw nb::value_error("uses must not be negative");
  return {checked_time(last_used), std::min(uses, adaptive::MAX_USES), kind};
}

int checked_stop(int stop) {
  if (stop < 0 || stop >= adaptive::RADIX[1]) throw nb::value_error("no such stop reason");
  return stop;
}

void check_size(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks > MAX_BLOCKS) throw nb::value_error("num_blocks must be 0 to 2^28");
}

// The policy would look for victims that are not there, if a page followed another one than its parent.
void check_forest(const TraceArray<int64_t>& first, const TraceArray<int32_t>& pages, const TraceArray<int32_t>& parent) {
  for (size_t r = 0; r + 1 < first.shape(0); ++r) {
    int32_t before = adaptive::NOWHERE;
    for (int64_t i = first.data()[r]; i < first.data()[r + 1]; ++i) {
      const int32_t page = pages.data()[i];
      if (parent.data()[page] != before) throw nb::value_error("pages and parent do not form a forest");
      before = page;
    }
  }
}

void replay_adaptive(const TraceArray<int64_t>& first, const TraceArray<int32_t>& pages, const TraceArray<int32_t>& parent,
                     const TraceArray<uint64_t>& keys, const TraceArray<double>& times,
                     const TraceArray<int32_t>& output_tokens, const TraceArray<uint8_t>& stop,
                     const TraceArray<bool>& has_partial_tail, int64_t capacity, const Counts& hits,
                     const Counts& evictions) {
  const size_t num_requests = times.shape(0), num_blocks = parent.shape(0);
  if (capacity < 1) throw nb::value_error("capacity must be at least 1");
  if (first.shape(0) != num_requests + 1 || keys.shape(0) != num_blocks || output_tokens.shape(0) != num_requests ||
      stop.shape(0) != num_requests || has_partial_tail.shape(0) != num_requests)
    throw nb::value_error("the arrays of the trace differ in length");
  check_counts(hits, evictions, num_requests);
  check_memory({Memory(first), Memory(pages), Memory(parent), Memory(keys), Memory(times), Memory(output_tokens),
                Memory(stop), Memory(has_partial_tail)},
               hits, evictions);
  check_chains(first, pages, static_cast<int64_t>(num_blocks));
  check_forest(first, pages, parent);
  for (size_t i = 0; i < num_requests; ++i) {
    checked_stop(stop.data()[i]);
    checked_time(times.data()[i]);
  }
  capacity = std::min(capacity, std::max<int64_t>(1, static_cast<int64_t>(num_blocks)));  // more are never in use
  check_size(capacity);
  nb::gil_scoped_release release;
  adaptive::Replay replay({first.data(), pages.data(), static_cast<int64_t>(num_requests), static_cast<int64_t>(num_blocks)},
                          {parent.data(), keys.data(), times.data(), output_tokens.data(), stop.data(),
                           reinterpret_cast<const uint8_t*>(has_partial_tail.data())},
                          capacity);
  replay.run({hits.data(), evictions.data()});
}

}  // namespace

void bind_adaptive(nb::module_& m) {
  nb::class_<Policy>(m, "AdaptivePolicy", "The adaptive eviction policy over blocks 0 .. num_blocks - 1; `now`: seconds.")
      .def("__init__",
           [](Policy* self, int64_t num_blocks) {
             check_size(num_blocks);
             new (self) Policy(num_blocks);
           },
           "num_blocks"_a)
      .def("below",
           [](const Policy& self, int64_t num_blocks) {
             check_size(num_blocks);
             return self.below(num_blocks);
           },
           "num_blocks"_a)
      .def("enter",
           [](Policy& self, const Ids& blocks, const Keys& keys, double now) {
             const auto ids = blocks_of(self, blocks);
             self.enter(ids.data(), read_keys(keys, ids.size()).data(), static_cast<int64_t>(ids.size()), checked_time(now));
           },
           "blocks"_a, "keys"_a.noconvert(), "now"_a)
      .def("hit",
           [](Policy& self, const Ids& blocks, double now) {
             const auto ids = blocks_of(self, blocks);
             self.hit(ids.data(), static_cast<int64_t>(ids.size()), checked_time(now));
           },
           "blocks"_a, "now"_a)
      .def("release",
           [](Policy& self, const Ids& blocks, int64_t output_tokens, int stop, bool has_partial_tail, double now) {
             const auto ids = blocks_of(self, blocks);
             self.release(ids.data(), static_cast<int64_t>(ids.size()),
                          {output_tokens, checked_stop(stop), has_partial_tail}, checked_time(now));
           },
           "blocks"_a, "output_tokens"_a, "stop"_a, "has_partial_tail"_a, "now"_a)
      .def("take_over",
           [](Policy& self, int64_t block, double last_used, int uses, int kind, double now) {
             self.take_over(checked(self, block), history_of(last_used, uses, kind), checked_time(now));
           },
           "block"_a, "last_used"_a, "uses"_a, "kind"_a, "now"_a)
      .def("offer",
           [](Policy& self, const Ids& blocks) {
             const auto ids = blocks_of(self, blocks);
             self.offer(ids.data(), static_cast<int64_t>(ids.size()));
           },
           "blocks"_a)
      .def("withdraw",
           [](Policy& self, const Ids& blocks) {
             const auto ids = blocks_of(self, blocks);
             self.withdraw(ids.data(), static_cast<int64_t>(ids.size()));
           },
           "blocks"_a)
      .def("victim", [](Policy& self, double now) { return self.victim(checked_time(now)); }, "now"_a,
           "-1: nothing is offered.")
      .def("leave",
           [](Policy& self, const Ids& blocks) {
             const auto ids = blocks_of(self, blocks);
             self.leave(ids.data(), static_cast<int64_t>(ids.size()));
           },
           "blocks"_a)
      .def("resize",
           [](Policy& self, int64_t num_blocks) {
             check_size(num_blocks);
             self.resize(num_blocks);
           },
           "num_blocks"_a)
      .def("move",
           [](Policy& self, int64_t source, int64_t target) { self.move(checked(self, source), checked(self, target)); },
           "source"_a, "target"_a)
      .def("history",
           [](const Policy& self, int64_t block) {
             const adaptive::History found = self.history(checked(self, block));
             return std::make_tuple(found.last_used, found.uses, found.kind);
           },
           "block"_a, "(last_used, uses, kind)")
      .def("worth_of",
           [](const Policy& self, double last_used, int uses, int kind, double now) {
             return self.worth_of(history_of(last_used, uses, kind), checked_time(now));
           },
           "last_used"_a, "uses"_a, "kind"_a, "now"_a)
      .def("offered", &Policy::offered);
  m.def("replay_adaptive", &replay_adaptive, "first"_a.noconvert(), "pages"_a.noconvert(), "parent"_a.noconvert(),
        "keys"_a.noconvert(), "times"_a.noconvert(), "output_tokens"_a.noconvert(), "stop"_a.noconvert(),
        "has_partial_tail"_a.noconvert(), "capacity"_a, "hits"_a.noconvert(), "evictions"_a.noconvert(),
        "The adaptive policy over a trace: fills hits and evictions (int32, one a request).");
}

}  // namespace kv
