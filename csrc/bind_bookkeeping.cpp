// Single tasks of the bookkeeping, over arrays that are given with each call: token ids from a Python list, blocks that
// are let go of, and nodes of the prefix index. What a step and a sequence's end take as a whole: bind_books.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "books.h"
#include "ids_binding.h"
#include "items.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <class Item>
using Column = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A whole number from 0 to 2^31-1, or -1.
int32_t token_id(PyObject* number) {
#if PY_VERSION_HEX < 0x030C0000  // later versions hide the digits
  if (PyLong_CheckExact(number) && Py_SIZE(number) == 1)
    return static_cast<int32_t>(reinterpret_cast<PyLongObject*>(number)->ob_digit[0]);
#endif
  if (!PyLong_Check(number)) return -1;
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(number, &overflow);
  return overflow || value < 0 || value > INT32_MAX ? -1 : static_cast<int32_t>(value);
}

constexpr int64_t AHEAD = 24;  // numbers

// Fills `out`; false, with anything in it, if a number is no int from 0 to 2^31-1.
bool read_token_ids(nb::list numbers, nb::handle out) {
  const int64_t count = static_cast<int64_t>(numbers.size());
  const Items<int32_t> ids(out, true, count);
  if (ids.size() != count) throw nb::value_error("out must be as long as numbers");
  for (int64_t i = 0; i < count; ++i) {
    if (i + AHEAD < count) __builtin_prefetch(PyList_GET_ITEM(numbers.ptr(), i + AHEAD));  // they lie anywhere
    const int32_t id = token_id(PyList_GET_ITEM(numbers.ptr(), i));
    if (id < 0) return false;
    ids.data()[i] = id;
  }
  return true;
}

template <class Item>
std::vector<int64_t> read_run(const Ids& ids) {
  std::vector<int64_t> found(ids.shape(0));
  const auto* data = static_cast<const char*>(ids.data());
  const int64_t stride = ids.stride(0) * static_cast<int64_t>(sizeof(Item));
  for (size_t i = 0; i < found.size(); ++i) {
    Item item;
    std::memcpy(&item, data + static_cast<int64_t>(i) * stride, sizeof(Item));
    found[i] = item;
  }
  return found;
}

// One mapping less for each of `ids`: (blocks freed, blocks cached), in this order, then those that others map. None,
// with nothing changed, where they do not come so, or one is held or named twice.
nb::object release_blocks(const Ids& ids, const Column<int32_t>& refcount, const Column<int32_t>& pins,
                          const Column<bool>& indexed, const Column<uint8_t>& states, const Column<int64_t>& marks,
                          const Column<const uint8_t>& dropped, const Column<const uint8_t>& kept) {
  const size_t limit = states.shape(0);
  for (const size_t length : {refcount.shape(0), pins.shape(0), indexed.shape(0), marks.shape(0)})
    if (length != limit) throw nb::value_error("the columns differ in length");
  if (dropped.shape(0) != kept.shape(0)) throw nb::value_error("the columns differ in length");
  const bool is_narrow = ids.dtype() == nb::dtype<int32_t>();
  if (!is_narrow && ids.dtype() != nb::dtype<int64_t>()) throw nb::type_error("ids must be int32 or int64");
  const BlockColumns blocks{refcount.data(), pins.data(), indexed.data(), states.data(), marks.data(), nullptr, nullptr,
                            nullptr, dropped.data(), kept.data(), static_cast<int64_t>(limit),
                            static_cast<int64_t>(kept.shape(0))};
  Released released;
  if (!release_run(blocks, is_narrow ? read_run<int32_t>(ids) : read_run<int64_t>(ids), released)) return nb::none();
  return nb::make_tuple(released.num_freed, released.num_cached);
}

// Pages that hang under one another, and the first under `parent`, are nodes from `first` on: prefix/tree.py.
void begin_run(int64_t first, int64_t num_pages, int64_t parent, nb::handle parents, nb::handle only_child,
               nb::handle run, nb::handle num_children) {
  if (first < 0 || num_pages < 1) throw nb::value_error("a run has at least one node");
  const int64_t stop = first + num_pages;
  const Items<int64_t> parent_of(parents, true, stop), child_of(only_child, true, stop), run_of(run, true, stop);
  const Items<int64_t> children_of(num_children, true, stop);
  for (int64_t node = first; node < stop; ++node) {
    parent_of.data()[node] = node == first ? parent : node - 1;
    run_of.data()[node] = first;
    if (node + 1 == stop) break;
    child_of.data()[node] = node + 1;
    children_of.data()[node] = 1;
  }
}

// Nodes from `first` on are held by `blocks` in `group`: prefix/index.py. False, with nothing changed, where a block has
// a node already, or is none.
bool hold_run(int64_t first, nb::handle blocks, int64_t group, nb::handle block_of_node, nb::handle node_of_block,
              nb::handle group_of_block) {
  const Items<int32_t> ids(blocks, false, 0);
  if (first < 0) throw nb::value_error("there is no such node");
  const Items<int64_t> block_of(block_of_node, true, first + ids.size()), node_of(node_of_block, true, 0);
  const Items<int64_t> group_of(group_of_block, true, node_of.size());
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t block = ids.data()[i];
    if (block < 0 || block >= node_of.size() || node_of.data()[block] != -1) return false;
  }
  for (int64_t i = 0; i < ids.size(); ++i) {
    const int64_t block = ids.data()[i];
    block_of.data()[first + i] = block;
    node_of.data()[block] = first + i;
    group_of.data()[block] = group;
  }
  return true;
}

}  // namespace

void bind_bookkeeping(nb::module_& m) {
  m.def("read_token_ids", &read_token_ids, "numbers"_a, "out"_a,
        "Fills out (int32); False if a number is no int from 0 to 2^31-1.");
  m.def("release_blocks", &release_blocks, "ids"_a, "refcount"_a.noconvert(), "pins"_a.noconvert(), "indexed"_a.noconvert(),
        "states"_a.noconvert(), "marks"_a.noconvert(), "dropped"_a.noconvert(), "kept"_a.noconvert(),
        "(blocks freed, blocks cached); None, with nothing changed, where a block is held or named twice, or the order "
        "is another.");
  m.def("begin_run", &begin_run, "first"_a, "num_pages"_a, "parent"_a, "parents"_a, "only_child"_a, "run"_a,
        "num_children"_a, "Nodes that hang under one another, and the first under parent.");
  m.def("hold_run", &hold_run, "first"_a, "blocks"_a, "group"_a, "block_of_node"_a, "node_of_block"_a,
        "group_of_block"_a, "Nodes from first on are held by these blocks; False where one is taken.");
}

}  // namespace kv
