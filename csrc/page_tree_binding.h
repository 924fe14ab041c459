// The columns of a prefix/tree.py and what a look-up and a publication do to them in one call. The rules are those of
// the tree; a page that makes another run be cut in two is left to it.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "items.h"
#include "slots.h"

namespace kv {

namespace nb = nanobind;

constexpr int64_t NO_NODE = -1;  // in the columns only

// The columns, which are laid out anew where there are more nodes.
struct TreeColumns {
  TreeColumns(nb::handle parent_of, nb::handle num_children_of, nb::handle only_child_of, nb::handle run_of,
              nb::handle num_users_of)
      : parent(parent_of, true, 0),
        num_children(num_children_of, true, parent.size()),
        only_child(only_child_of, true, parent.size()),
        run(run_of, true, parent.size()),
        num_users(num_users_of, true, parent.size()) {}
  Items<int64_t> parent, num_children, only_child, run, num_users;
};

// One tree. None of the objects it holds refers to the cache.
class PageTreeBinding {
 public:
  PageTreeBinding(nb::object tree, int64_t page_size)
      : width_(page_size * static_cast<int64_t>(sizeof(int32_t))),
        content_(tree.attr("_content")),
        run_pages_(tree.attr("_run_pages")),
        next_sibling_(tree.attr("_next_sibling")),
        previous_sibling_(tree.attr("_previous_sibling")),
        free_(tree.attr("_free")),
        node_by_edge_(tree.attr("_node_by_edge")),
        child_by_token_(tree.attr("_child_by_token")),
        parent_(tree.type(), "parent"),
        num_used_(tree.type(), "_num_used"),
        tree_(std::move(tree)) {}

  const TreeColumns& columns() {
    const nb::handle parent = parent_.of(tree_);
    if (!columns_ || !parent.is(bound_parent_)) {
      columns_.emplace(parent, tree_.attr("num_children"), tree_.attr("_only_child"), tree_.attr("_run"),
                       tree_.attr("num_users"));
      bound_parent_ = nb::borrow(parent);
    }
    return *columns_;
  }

  // Whether nothing hangs under a node.
  static bool is_leaf(const TreeColumns& columns, int64_t node) {
    if (node < 0 || node >= columns.num_children.size()) throw nb::index_error("there is no such node");
    return columns.num_children[node] == 0;
  }

  // There is a place for so many nodes more; columns() may be others now.
  void reserve(int64_t num_nodes) const { tree_.attr("reserve")(num_nodes); }

  // The longest chain of nodes below `node` that have the content of `num_pages` pages of token ids.
  void walk(const TreeColumns& columns, int64_t node, const int32_t* ids, int64_t num_pages,
            std::vector<int64_t>& found) const {
    const char* content = reinterpret_cast<const char*>(ids);
    for (int64_t at = 0; at < num_pages;) {
      const int64_t first = child(columns, node, content + at * width_);
      if (first == NO_NODE) return;
      const int64_t run = columns.run[first];
      const int64_t pages = std::min(num_run_pages(run) - (first - run), num_pages - at);
      const char* theirs = PyBytes_AS_STRING(PyList_GET_ITEM(content_.ptr(), run)) + (first - run) * width_;
      int64_t common = 1;
      while (common < pages && !std::memcmp(theirs + common * width_, content + (at + common) * width_, width_)) ++common;
      for (int64_t i = 0; i < common; ++i) found.push_back(first + i);
      node = found.back();
      at += common;
    }
  }

  // Whether pages of this content can be hung under `parent` with no run cut in two: it has no such child.
  bool can_hang(const TreeColumns& columns, int64_t parent, const int32_t* ids) const {
    if (columns.num_children[parent] == 0) return true;
    const int64_t only = columns.only_child[parent];
    if (only != NO_NODE && columns.run[only] != only) return false;
    return child(columns, parent, reinterpret_cast<const char*>(ids)) == NO_NODE;
  }

  // Hangs `num_pages` pages under `parent` and one another; `nodes` are theirs. REQUIRES: can_hang(), and places.
  void hang(const TreeColumns& columns, int64_t parent, const int32_t* ids, int64_t num_pages,
            std::vector<int64_t>& nodes) {
    take(num_pages, nodes);
    const char* content = reinterpret_cast<const char*>(ids);
    for (int64_t at = 0; at < num_pages;) {
      int64_t stop = at + 1;
      while (stop < num_pages && nodes[stop] == nodes[stop - 1] + 1) ++stop;
      begin_run(columns, nodes[at], parent, content + at * width_, stop - at);
      parent = nodes[stop - 1];
      at = stop;
    }
  }

 private:
  int64_t num_run_pages(int64_t run) const { return whole_number(PyList_GET_ITEM(run_pages_.ptr(), run)); }

  nb::object edge(int64_t parent, const char* content, int64_t num_bytes) const {
    nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, sizeof(parent) + num_bytes));
    if (!bytes.is_valid()) nb::raise_python_error();
    std::memcpy(PyBytes_AS_STRING(bytes.ptr()), &parent, sizeof(parent));
    std::memcpy(PyBytes_AS_STRING(bytes.ptr()) + sizeof(parent), content, num_bytes);
    return bytes;
  }

  // The child of `parent` with the content of a page of token ids.
  int64_t child(const TreeColumns& columns, int64_t parent, const char* content) const {
    const int64_t only = columns.only_child[parent];
    if (only != NO_NODE) {
      const int64_t run = columns.run[only];
      PyObject* bytes = PyList_GET_ITEM(content_.ptr(), run);
      if (num_run_pages(run) == 1 && PyBytes_GET_SIZE(bytes) != width_) return NO_NODE;  // it has media
      return std::memcmp(PyBytes_AS_STRING(bytes) + (only - run) * width_, content, width_) ? NO_NODE : only;
    }
    if (columns.num_children[parent] == 0) return NO_NODE;
    PyObject* found = PyDict_GetItemWithError(node_by_edge_.ptr(), edge(parent, content, width_).ptr());
    if (found == nullptr && PyErr_Occurred()) nb::raise_python_error();
    return found == nullptr ? NO_NODE : whole_number(found);
  }

  void take(int64_t count, std::vector<int64_t>& nodes) const {
    const int64_t num_free = PyList_GET_SIZE(free_.ptr());
    nodes.resize(count);
    if (num_free >= count) {
      for (int64_t i = 0; i < count; ++i) nodes[i] = whole_number(PyList_GET_ITEM(free_.ptr(), num_free - 1 - i));
      if (PyList_SetSlice(free_.ptr(), num_free - count, num_free, nullptr)) nb::raise_python_error();
      return;
    }
    const int64_t first = whole_number(num_used_.of(tree_).ptr());
    for (int64_t i = 0; i < count; ++i) nodes[i] = first + i;
    num_used_.set(tree_, nb::int_(first + count));
  }

  static void set_item(const nb::object& list, int64_t at, nb::object value) {
    if (PyList_SetItem(list.ptr(), at, value.release().ptr())) nb::raise_python_error();
  }

  static void set_item(const nb::object& dict, const nb::object& key, const nb::object& value) {
    if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr())) nb::raise_python_error();
  }

  void begin_run(const TreeColumns& columns, int64_t first, int64_t parent, const char* content, int64_t pages) {
    nb::object bytes = nb::steal(PyBytes_FromStringAndSize(content, pages * width_));
    if (!bytes.is_valid()) nb::raise_python_error();
    set_item(content_, first, std::move(bytes));
    set_item(run_pages_, first, nb::int_(pages));
    for (int64_t node = first; node < first + pages; ++node) {
      columns.parent[node] = node == first ? parent : node - 1;
      columns.run[node] = first;
      if (node + 1 == first + pages) break;
      columns.only_child[node] = node + 1;
      columns.num_children[node] = 1;
    }
    if (columns.num_children[parent]++ == 0) {
      columns.only_child[parent] = first;
      return;
    }
    if (const int64_t only = columns.only_child[parent]; only != NO_NODE) {
      columns.only_child[parent] = NO_NODE;
      PyObject* theirs = PyList_GET_ITEM(content_.ptr(), only);  // it begins a run
      list(only, parent, PyBytes_AS_STRING(theirs), num_run_pages(only) == 1 ? PyBytes_GET_SIZE(theirs) : width_);
    }
    list(first, parent, content, width_);
  }

  void list(int64_t node, int64_t parent, const char* content, int64_t num_bytes) {
    const nb::object number = nb::int_(node);
    set_item(node_by_edge_, edge(parent, content, num_bytes), number);
    const nb::object first = edge(parent, content, sizeof(int32_t));
    PyObject* head = PyDict_GetItemWithError(child_by_token_.ptr(), first.ptr());
    if (head == nullptr && PyErr_Occurred()) nb::raise_python_error();
    const nb::object next = head == nullptr ? nb::object(nb::int_(NO_NODE)) : nb::borrow(head);
    if (head != nullptr) set_item(previous_sibling_, whole_number(head), number);
    set_item(next_sibling_, node, next);
    set_item(child_by_token_, first, number);
  }

  int64_t width_;
  nb::object bound_parent_;  // that the columns belong to
  std::optional<TreeColumns> columns_;
  nb::object content_, run_pages_, next_sibling_, previous_sibling_, free_;  // lists
  nb::object node_by_edge_, child_by_token_;
  Slot parent_, num_used_;
  nb::object tree_;
};

}  // namespace kv
