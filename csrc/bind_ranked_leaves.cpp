// The evictable blocks of an LRU order: eviction/ranked_leaves.py.
#include <nanobind/nanobind.h>

#include "items.h"
#include "ranked_leaves.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

void offer_all(RankedLeaves& leaves, const nb::list& blocks, nb::handle rank_of) {
  const Items<int64_t> ranks(rank_of, false, 0);
  for (nb::handle each : blocks) {
    const int64_t block = whole_number(each.ptr());
    if (block < 0 || block >= ranks.size()) throw nb::index_error("a block has no rank");
    leaves.offer(block, ranks[block]);
  }
}

void withdraw_all(RankedLeaves& leaves, const nb::list& blocks) {
  for (nb::handle each : blocks) leaves.withdraw(whole_number(each.ptr()));
}

nb::object lowest(const RankedLeaves& leaves) {
  return leaves.size() ? nb::object(nb::int_(leaves.lowest())) : nb::none();
}

nb::list ordered(const RankedLeaves& leaves) {
  nb::list blocks;
  for (const RankedLeaves::Run& run : leaves.runs())
    for (const RankedLeaves::Entry& entry : run) blocks.append(entry.block);
  return blocks;
}

}  // namespace

void bind_ranked_leaves(nb::module_& m) {
  nb::class_<RankedLeaves>(m, "RankedLeaves", "Blocks by rank, above -2^63, the lowest first.")
      .def(nb::init<int64_t>(), "num_blocks"_a)
      .def("__len__", &RankedLeaves::size)
      .def("__contains__", &RankedLeaves::contains, "block"_a)
      .def("offer", &RankedLeaves::offer, "block"_a, "rank"_a)
      .def("offer_all", &offer_all, "blocks"_a, "rank_of"_a)
      .def("withdraw", &RankedLeaves::withdraw, "block"_a)
      .def("withdraw_all", &withdraw_all, "blocks"_a)
      .def("lowest", &lowest)
      .def("move", &RankedLeaves::move, "source"_a, "target"_a)
      .def("ordered", &ordered);
}

}  // namespace kv
