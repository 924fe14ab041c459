// A Sequence and its page tables as the native books see them: cache/sequence.py, memory/page_table.py.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "items.h"
#include "slots.h"

namespace kv {

namespace nb = nanobind;

constexpr int32_t UNMAPPED = -1;  // as in memory/page_table.py
constexpr int64_t NO_ROW = -1;    // of a freed sequence

// What a row knows of the table that was mapped last for its sequence. It stays alive here, or is let go of by the next.
struct RowTable {
  static constexpr int64_t MOST = 1024;  // entries: 4 KiB a row
  nb::object tables, array;
  const NumpyArray* entries = nullptr;

  // A table's parts lie far apart, refer to one another, and are in no cache after a step: to read all of them at once
  // takes half of the time that it takes one after the other. (Prefetching them took nothing off: a processor may leave
  // out what would miss the TLB.)
  void read_ahead() const {
    if (entries == nullptr) return;
    const auto read = [](const void* at) { (void)*static_cast<const volatile char*>(at); };
    const char* const data = entries->data;
    const int64_t bytes = std::min<int64_t>(entries->shape[0] * sizeof(int32_t), 256);
    for (int64_t at = 0; at < bytes; at += 64) read(data + at);
    read(tables.ptr());
    read(PyTuple_GET_ITEM(tables.ptr(), 0));
  }
};

// `entries`: an array such as tables have.
class SequenceBinding {
 public:
  SequenceBinding(nb::object sequence_type, nb::object table_type, nb::handle entries)
      : row(sequence_type, "row"), tokens(sequence_type, "tokens"), tables(sequence_type, "tables"),
        scope(sequence_type, "scope"), away(sequence_type, "away"), node(sequence_type, "_node"),
        root(sequence_type, "_root"), is_freed(sequence_type, "is_freed"), entries(table_type, "entries"),
        num_pages(table_type, "_num_pages"), tiers(table_type, "_tiers"), layout(entries),
        sequence_type_(std::move(sequence_type)), table_type_(std::move(table_type)) {}

  bool is_sequence(nb::handle object) const { return as_type(object) == sequence_type_.ptr(); }
  bool is_table(nb::handle object) const { return as_type(object) == table_type_.ptr(); }

  // Without bound where it is written by hand.
  int64_t num_known_tokens(nb::handle sequence) const {
    const nb::handle ids = tokens.of(sequence);
    if (ids.is_none()) return std::numeric_limits<int64_t>::max();
    const Py_ssize_t known = PyObject_Size(ids.ptr());
    if (known < 0) nb::raise_python_error();
    return known;
  }
  nb::handle table(nb::handle sequence, int64_t group) const {
    const nb::handle found = tables.of(sequence);
    if (!PyTuple_Check(found.ptr()) || group >= PyTuple_GET_SIZE(found.ptr())) throw nb::index_error("no such table");
    const nb::handle one = PyTuple_GET_ITEM(found.ptr(), group);
    if (!is_table(one)) throw nb::type_error("a sequence has page tables only");
    return one;
  }
  int64_t num_table_pages(nb::handle table) const { return whole_number(num_pages.of(table).ptr()); }
  Entries entries_of(nb::handle table, int64_t num_at_least) const {
    return Entries(layout, entries.of(table), num_at_least);
  }

  // The only table of a sequence as its row knows it; nothing of one that the row would not keep.
  RowTable row_table(nb::handle sequence) const {
    const nb::handle all = tables.of(sequence), one = table(sequence, 0), array = entries.of(one);
    const NumpyArray* const known = layout.known(array);
    if (known == nullptr || known->shape[0] > RowTable::MOST || PyTuple_GET_SIZE(all.ptr()) != 1) return {};
    return {nb::borrow(all), nb::borrow(array), known};
  }

  // Whether nobody but the sequence and its row has the table, all of whose pages lie on the device.
  bool has_to_itself(nb::handle sequence, const RowTable& known) const {
    const nb::handle one = table(sequence, 0);
    return known.tables.is(tables.of(sequence)) && known.array.is(entries.of(one)) && tiers.of(one).is_none() &&
           Py_REFCNT(known.tables.ptr()) == 2 && Py_REFCNT(known.array.ptr()) == 2 && Py_REFCNT(one.ptr()) == 1;
  }

  // Of a Sequence, and of its PageTable.
  Slot row, tokens, tables, scope, away, node, root, is_freed;
  Slot entries, num_pages, tiers;
  EntriesLayout layout;

 private:
  static PyObject* as_type(nb::handle object) { return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())); }
  nb::object sequence_type_, table_type_;
};

}  // namespace kv
