#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "adaptive.h"
#include "adaptive_replay.h"
#include "ids_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

using adaptive::Policy;
template <class Item>
using Array = nb::ndarray<const Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> blocks_of(const Policy& policy, const Ids& ids) {
  return read_ids("blocks", ids, policy.num_blocks());
}

int64_t checked(const Policy& policy, int64_t block) {
  if (block < 0 || block >= policy.num_blocks()) throw nb::index_error("no such block");
  return block;
}

adaptive::History history_of(double last_used, int uses, int kind) {
  if (kind < 0 || kind >= adaptive::NUM_KINDS) throw nb::value_error("no such kind of page");
  return {last_used, uses, kind};
}

int checked_stop(int stop) {
  if (stop < 0 || stop >= adaptive::RADIX[1]) throw nb::value_error("no such stop reason");
  return stop;
}

void check_size(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks >= INT32_MAX) throw nb::value_error("num_blocks must be an int32, not negative");
}

void replay_adaptive(const Array<int64_t>& first, const Array<int32_t>& pages, const Array<int32_t>& parent,
                     const Array<uint64_t>& keys, const Array<double>& times, const Array<int32_t>& output_tokens,
                     const Array<uint8_t>& stop, const Array<bool>& has_partial_tail, int64_t capacity,
                     const Counts& hits, const Counts& evictions) {
  const size_t num_requests = times.shape(0), num_blocks = parent.shape(0);
  check_size(capacity);
  if (capacity < 1) throw nb::value_error("capacity must be at least 1");
  if (first.shape(0) != num_requests + 1 || keys.shape(0) != num_blocks || output_tokens.shape(0) != num_requests ||
      stop.shape(0) != num_requests || has_partial_tail.shape(0) != num_requests || hits.shape(0) != num_requests ||
      evictions.shape(0) != num_requests)
    throw nb::value_error("the arrays of the trace differ in length");
  int64_t before = 0;
  for (size_t i = 0; i <= num_requests; ++i) {
    if (first.data()[i] < before || (i == 0 && first.data()[i] != 0)) throw nb::value_error("first must start at 0 and not fall");
    before = first.data()[i];
  }
  if (before != static_cast<int64_t>(pages.shape(0))) throw nb::value_error("first must end at the number of pages");
  for (size_t i = 0; i < pages.shape(0); ++i)
    if (static_cast<uint32_t>(pages.data()[i]) >= num_blocks) throw nb::index_error("no such page");
  for (size_t i = 0; i < num_blocks; ++i)
    if (parent.data()[i] >= static_cast<int64_t>(num_blocks)) throw nb::index_error("no such parent");
  for (size_t i = 0; i < num_requests; ++i) checked_stop(stop.data()[i]);
  nb::gil_scoped_release release;
  adaptive::Replay replay({first.data(), pages.data(), static_cast<int64_t>(num_requests), static_cast<int64_t>(num_blocks)},
                          {parent.data(), keys.data(), times.data(), output_tokens.data(), stop.data(),
                           has_partial_tail.data()},
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
           [](Policy& self, const Ids& blocks, const Array<uint64_t>& keys, double now) {
             const auto ids = blocks_of(self, blocks);
             if (keys.shape(0) != ids.size()) throw nb::value_error("as many keys as blocks");
             self.enter(ids.data(), keys.data(), static_cast<int64_t>(ids.size()), now);
           },
           "blocks"_a, "keys"_a, "now"_a)
      .def("hit",
           [](Policy& self, const Ids& blocks, double now) {
             const auto ids = blocks_of(self, blocks);
             self.hit(ids.data(), static_cast<int64_t>(ids.size()), now);
           },
           "blocks"_a, "now"_a)
      .def("release",
           [](Policy& self, const Ids& blocks, int64_t output_tokens, int stop, bool has_partial_tail, double now) {
             const auto ids = blocks_of(self, blocks);
             self.release(ids.data(), static_cast<int64_t>(ids.size()),
                          {output_tokens, checked_stop(stop), has_partial_tail}, now);
           },
           "blocks"_a, "output_tokens"_a, "stop"_a, "has_partial_tail"_a, "now"_a)
      .def("take_over",
           [](Policy& self, int64_t block, double last_used, int uses, int kind, double now) {
             self.take_over(checked(self, block), history_of(last_used, uses, kind), now);
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
      .def("victim", &Policy::victim, "now"_a, "-1: nothing is offered.")
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
             return self.worth_of(history_of(last_used, uses, kind), now);
           },
           "last_used"_a, "uses"_a, "kind"_a, "now"_a)
      .def("offered", &Policy::offered);
  m.def("replay_adaptive", &replay_adaptive, "first"_a.noconvert(), "pages"_a.noconvert(), "parent"_a.noconvert(),
        "keys"_a.noconvert(), "times"_a.noconvert(), "output_tokens"_a.noconvert(), "stop"_a.noconvert(),
        "has_partial_tail"_a.noconvert(), "capacity"_a, "hits"_a.noconvert(), "evictions"_a.noconvert(),
        "The adaptive policy over a trace: fills hits and evictions (int32, one a request).");
}

}  // namespace kv
