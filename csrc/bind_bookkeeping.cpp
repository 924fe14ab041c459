// What bookkeeping does once a token, a step or a sequence, where numpy takes dozens of calls: token ids from a Python
// list, the opening and closing of a plain step, and the end of a plain sequence. Knows no policy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "books.h"
#include "ids_binding.h"
#include "items.h"
#include "lru_binding.h"
#include "page_tree_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <class Item>
using Column = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class Item>
using Lines = nb::ndarray<Item, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

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

// How many token ids a sequence has: without bound where it is written by hand.
int64_t num_known(PyObject* sequence, PyObject* name) {
  PyObject* tokens = PyObject_GetAttr(sequence, name);
  if (tokens == nullptr) nb::raise_python_error();
  const int64_t known = tokens == Py_None ? std::numeric_limits<int64_t>::max() : PyObject_Size(tokens);
  Py_DECREF(tokens);
  if (known < 0) nb::raise_python_error();
  return known;
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

// Of one cache. The columns stay alive here; whoever lays them out anew binds them again.
class Books {
 public:
  explicit Books(int64_t page_size) : page_size_(page_size) {
    if (page_size < 1) throw nb::value_error("a page has at least one token");
  }

  void bind_rows(Lines<int64_t> numbers, Column<bool> is_alive, Column<bool> is_special, Lines<int32_t> tail) {
    const size_t rows = is_alive.shape(0);
    if (numbers.shape(0) < 5 || numbers.shape(1) != rows || is_special.shape(0) != rows || tail.shape(1) != rows)
      throw nb::value_error("the columns differ in length");
    auto line = [&](size_t which) { return numbers.data() + which * rows; };
    rows_ = {line(0), line(1), line(2), line(3), line(4), is_alive.data(), is_special.data(), tail.data(),
             static_cast<int64_t>(rows), static_cast<int64_t>(tail.shape(0))};
    numbers_ = std::move(numbers), is_alive_ = std::move(is_alive), is_special_ = std::move(is_special);
    tail_ = std::move(tail);
  }

  void bind_blocks(Column<int32_t> refcount, Column<int32_t> pins, Column<bool> indexed, Column<uint8_t> states,
                   Column<int64_t> marks, Column<int32_t> free, Column<int64_t> counts, Column<const uint8_t> given,
                   Column<const uint8_t> dropped, Column<const uint8_t> kept) {
    const size_t blocks = states.shape(0);
    for (const size_t length : {refcount.shape(0), pins.shape(0), indexed.shape(0), marks.shape(0), free.shape(0)})
      if (length != blocks) throw nb::value_error("the columns differ in length");
    if (dropped.shape(0) != kept.shape(0) || given.shape(0) != kept.shape(0) ||
        counts.shape(0) != kept.shape(0) || kept.shape(0) <= CACHED) throw nb::value_error("the columns differ in length");
    blocks_ = {refcount.data(), pins.data(), indexed.data(), states.data(), marks.data(), free.data(), counts.data(), given.data(),
               dropped.data(), kept.data(), static_cast<int64_t>(blocks), static_cast<int64_t>(kept.shape(0))};
    refcount_ = std::move(refcount), pins_ = std::move(pins), indexed_ = std::move(indexed);
    states_ = std::move(states), marks_ = std::move(marks), free_ = std::move(free);
    counts_ = std::move(counts), given_ = std::move(given), dropped_ = std::move(dropped), kept_ = std::move(kept);
  }

  // Pages that each group needs for the step, `new_pages` by sequence; where that is none, the step is open. `starts`
  // and `tails` [groups, sequences] are filled. -1, with nothing changed, where a step is not plain or not possible.
  int64_t open(nb::handle rows, nb::handle counts, nb::tuple sequences, nb::handle starts, nb::handle tails,
               nb::handle new_pages) const {
    const int64_t num = static_cast<int64_t>(sequences.size());
    const Items<int64_t> which(rows, false, num), wanted(counts, false, num);
    const Items<int64_t> start_of(starts, true, num), pages_of(new_pages, true, num);
    const Items<int32_t> tail_of(tails, true, num * rows_.num_groups);
    int64_t needed = 0;
    for (int64_t i = 0; i < num; ++i) {
      const int64_t row = which.data()[i], count = wanted.data()[i];
      if (row < 0 || row >= rows_.num_rows || count < 1 || rows_.is_special[row]) return -1;
      const int64_t start = rows_.reserved[row];
      if (num_known(PyTuple_GET_ITEM(sequences.ptr(), i), names_.tokens.ptr()) - start < count) return -1;
      if (start % page_size_ && has_protected_tail(rows_, blocks_, row)) return -1;
      start_of.data()[i] = start;
      needed += pages_of.data()[i] = pages_up_to(start + count, page_size_) - pages_up_to(start, page_size_);
      for (int64_t group = 0; group < rows_.num_groups; ++group)
        tail_of.data()[group * num + i] = rows_.tail[group * rows_.num_rows + row];
    }
    if (needed == 0) take_tokens(rows_, {which.data(), wanted.data(), num});
    return needed;
  }

  // Maps the pages that `open` asked for, `starts` and `new_pages` as it left them: to `fresh`, group by group, and in
  // a group sequence by sequence. False, with no page mapped, where one is there already. `device`: the tier.
  bool map(nb::handle rows, nb::tuple sequences, nb::handle starts, nb::handle new_pages, nb::handle fresh,
           uint8_t device) const {
    const Items<int32_t> blocks(fresh, false, 0);
    return map_to(rows, sequences, starts, new_pages, blocks.data(), blocks.size(), device);
  }

  // The same with the `needed` blocks on top of the stack of free ones, which are used now.
  bool map_free(nb::handle rows, nb::tuple sequences, nb::handle starts, nb::handle new_pages, int64_t needed,
                uint8_t device) {
    if (needed < 1 || !read_free(blocks_, needed, fresh_)) return false;
    if (!map_to(rows, sequences, starts, new_pages, fresh_.data(), needed, device)) return false;
    give_out(blocks_, fresh_);
    return true;
  }
  // The pages that `open` asked for are mapped: the step is open.
  void opened(nb::handle rows, nb::handle counts, nb::handle tails) const {
    const Items<int64_t> which(rows, false, 0), wanted(counts, false, which.size());
    const int64_t num = which.size();
    const Items<int32_t> tail_of(tails, true, num * rows_.num_groups);
    for (int64_t i = 0; i < num; ++i)
      if (which.data()[i] < 0 || which.data()[i] >= rows_.num_rows) throw nb::index_error("there is no such row");
    take_tokens(rows_, {which.data(), wanted.data(), num});
    for (int64_t group = 0; group < rows_.num_groups; ++group)
      for (int64_t i = 0; i < num; ++i)
        tail_of.data()[group * num + i] = rows_.tail[group * rows_.num_rows + which.data()[i]];
  }

  // (sequences that have pages to publish, whose places in the step `growing` begins with; tokens), where the step has
  // ended well and counts for all; else nothing, with nothing changed.
  nb::object settle(nb::handle rows, nb::handle counts, nb::handle starts, nb::handle growing) const {
    const Items<int64_t> which(rows, false, 0);
    const int64_t num = which.size();
    const Items<int64_t> wanted(counts, false, num), start_of(starts, false, num), growing_at(growing, true, num);
    Settled settled;
    const StepRows step{which.data(), wanted.data(), num};
    if (!kv::settle(rows_, step, start_of.data(), page_size_, growing_at.data(), settled)) return nb::none();
    return nb::make_tuple(settled.num_growing, settled.num_tokens);
  }

  // The prefix index whose tree this is; `blocks` by group, as they lie in prefix/index.py.
  void bind_pages(nb::object tree, nb::list blocks, nb::object node_of_block, nb::object group_of_block,
                  nb::object root_users) {
    if (static_cast<int64_t>(blocks.size()) != rows_.num_groups) throw nb::value_error("the groups differ in number");
    tree_.emplace(std::move(tree), page_size_);
    block_of_node_.clear();
    for (nb::handle each : blocks) block_of_node_.push_back(nb::borrow(each));
    node_of_block_.emplace(node_of_block, true, blocks_.num_blocks);
    group_of_block_.emplace(group_of_block, true, blocks_.num_blocks);
    root_users_ = std::move(root_users);
  }

  // (nodes below `root` that hold the first pages of `ids`, at most `num_pages`; how many of them have a block in every
  // group before the first that lacks one). REQUIRES: bind_pages().
  nb::object find(int64_t root, nb::handle ids, int64_t num_pages) {
    const Items<int32_t> tokens(ids, false, num_pages * page_size_);
    run_.clear();
    const TreeColumns& columns = tree_->columns();
    if (root < 0 || root >= columns.parent.size()) throw nb::index_error("there is no such node");
    tree_->walk(columns, root, tokens.data(), num_pages, run_);
    int64_t depth = static_cast<int64_t>(run_.size());
    for (const nb::object& blocks : block_of_node_) {
      const Items<int64_t> block_of(blocks, false, 0);
      for (int64_t i = 0; i < depth; ++i)
        if (block_of[run_[i]] == NO_NODE) depth = i;
    }
    nb::object nodes = nb::steal(PyList_New(static_cast<Py_ssize_t>(run_.size())));
    for (size_t i = 0; i < run_.size(); ++i) PyList_SET_ITEM(nodes.ptr(), i, PyLong_FromLongLong(run_[i]));
    return nb::make_tuple(nodes, depth);
  }

  // Full pages become findable: of the sequences whose places in the step are growing[begin:num_growing]. Where the
  // first stands that is not plain: its content is there already, or hangs beside a run's; it has pages below the
  // device, or media. (Place among the growing, pages published.)
  nb::object publish(nb::handle rows, nb::tuple sequences, nb::handle growing, int64_t begin, int64_t num_growing) {
    const Items<int64_t> which(rows, false, static_cast<int64_t>(sequences.size()));
    const Items<int64_t> places(growing, false, num_growing);
    int64_t num_pages = 0, published = 0, at = begin;
    for (int64_t i = begin; i < num_growing; ++i) {
      if (places[i] < 0 || places[i] >= static_cast<int64_t>(sequences.size())) throw nb::index_error("no such place");
      const int64_t row = which[places[i]];
      if (row < 0 || row >= rows_.num_rows) throw nb::index_error("there is no such row");
      num_pages += num_full(row) - rows_.published[row];
    }
    tree_->reserve(num_pages);
    const TreeColumns& columns = tree_->columns();
    for (; at < num_growing; ++at) {
      const int64_t row = which[places[at]], first = rows_.published[row], stop = num_full(row);
      const nb::handle sequence = PyTuple_GET_ITEM(sequences.ptr(), places[at]);
      if (!publish_one(columns, node_of_block_->data(), group_of_block_->data(), sequence, first, stop)) break;
      rows_.published[row] = stop;
      published += stop - first;
    }
    return nb::make_tuple(at, published);
  }

  // The sequence of `row` ends: the pages of its only `table` go back, the last page first, and it leaves its `root`.
  // What is cached then is ranked in `lru`, and offered where nothing hangs under it. How many pages that are; -1, with
  // nothing changed, where it is not plain. REQUIRES: bind_pages(), and one layer group.
  int64_t end(int64_t row, nb::handle table, nb::handle root, nb::handle index, nb::handle lru) {
    if (row < 0 || row >= rows_.num_rows || rows_.open_steps[row] != 0 || !rows_.is_alive[row]) return -1;
    const int64_t num_pages = nb::cast<int64_t>(attribute(table, names_.num_pages));
    const Items<int32_t> entries(attribute(table, names_.entries), false, num_pages);
    Released released;
    const TreeColumns& columns = tree_->columns();
    if (!lru_ || !lru_->is_of(lru)) lru_.emplace(lru, blocks_.num_blocks);
    if (!release_last_first(blocks_, entries.data(), num_pages, released)) return -1;
    rows_.is_alive[row] = rows_.is_special[row] = false;
    for (size_t line = 0; line < numbers_.shape(0); ++line) numbers_(line, row) = 0;
    for (int64_t group = 0; group < rows_.num_groups; ++group) rows_.tail[group * rows_.num_rows + row] = 0;
    if (released.num_cached) {
      const int32_t* last = entries.data() + num_pages - 1 - released.num_freed;
      // Only the last page can be a leaf: the others have the next one.
      lru_->release(last, released.num_cached, tree_->is_leaf(columns, (*node_of_block_)[*last]));
    }
    if (root.is_none()) return released.num_cached;
    if (tree_->is_leaf(columns, whole_number(root.ptr())))
      index.attr("leave_root")(root);
    else
      count_down(root_users_, root);
    return released.num_cached;
  }

 private:
  bool map_to(nb::handle rows, const nb::tuple& sequences, nb::handle starts, nb::handle new_pages,
              const int32_t* blocks, int64_t num_blocks, uint8_t device) const {
    const int64_t num = static_cast<int64_t>(sequences.size());
    const Items<int64_t> which(rows, false, num), start_of(starts, false, num), pages_of(new_pages, false, num);
    struct Part {
      nb::object table;
      int64_t row, group, page, count;
    };
    std::vector<Part> parts;
    int64_t needed = 0;
    for (int64_t group = 0; group < rows_.num_groups; ++group)
      for (int64_t i = 0; i < num; ++i) {
        const int64_t count = pages_of.data()[i], page = pages_up_to(start_of.data()[i], page_size_);
        if (count < 1) continue;
        const nb::object tables = attribute(PyTuple_GET_ITEM(sequences.ptr(), i), names_.tables);
        nb::object table = nb::borrow(nb::tuple(tables)[group]);
        if (nb::cast<int64_t>(attribute(table, names_.num_pages)) > page) return false;
        if (which.data()[i] < 0 || which.data()[i] >= rows_.num_rows) return false;
        parts.push_back({std::move(table), which.data()[i], group, page, count});
        needed += count;
      }
    if (needed > num_blocks) throw nb::value_error("there are fewer blocks than pages");
    const int32_t* next = blocks;
    for (const Part& part : parts) {
      const int64_t stop = part.page + part.count;
      if (PyObject_Size(attribute(part.table, names_.entries).ptr()) < stop) part.table.attr(names_.grow)(stop);
      {
        const Items<int32_t> entries(attribute(part.table, names_.entries), true, stop);
        std::memcpy(entries.data() + part.page, next, part.count * sizeof(int32_t));
      }
      if (const nb::object owner = attribute(part.table, names_.tiers); !owner.is_none()) {
        const Items<uint8_t> tiers(owner, true, stop);
        std::memset(tiers.data() + part.page, device, part.count);
      }
      if (PyObject_SetAttr(part.table.ptr(), names_.num_pages.ptr(), nb::int_(stop).ptr())) nb::raise_python_error();
      next += part.count;
      rows_.tail[part.group * rows_.num_rows + part.row] = next[-1];
    }
    return true;
  }

  static void count_down(const nb::object& numbers, nb::handle key) {
    PyObject* found = PyDict_GetItemWithError(numbers.ptr(), key.ptr());
    if (found == nullptr) throw nb::value_error("nobody uses this root");
    const nb::object less = nb::int_(whole_number(found) - 1);
    if (PyDict_SetItem(numbers.ptr(), key.ptr(), less.ptr())) nb::raise_python_error();
  }

  int64_t num_full(int64_t row) const {
    return std::min(rows_.committed[row] / page_size_, rows_.publish_until[row]);
  }

  bool publish_one(const TreeColumns& columns, int64_t* node_of, int64_t* group_of, nb::handle sequence, int64_t first,
                   int64_t stop) {
    if (!attribute(sequence, names_.away).is_none()) return false;
    if (PyObject_Size(attribute(attribute(sequence, names_.scope), names_.media).ptr()) != 0) return false;
    const int64_t parent = nb::cast<int64_t>(attribute(sequence, names_.node)), num_pages = stop - first;
    const Items<int32_t> ids(attribute(sequence, names_.tokens), false, stop * page_size_);
    const int32_t* content = ids.data() + first * page_size_;
    if (parent < 0 || parent >= columns.parent.size() || !tree_->can_hang(columns, parent, content)) return false;
    const nb::object tables = attribute(sequence, names_.tables);
    run_.clear();
    for (int64_t group = 0; group < rows_.num_groups; ++group) {
      const Items<int32_t> entries(attribute(nb::tuple(tables)[group], names_.entries), false, stop);
      for (int64_t page = first; page < stop; ++page) {
        const int64_t block = entries[page];
        if (block < 0 || block >= blocks_.num_blocks || node_of[block] != NO_NODE || blocks_.indexed[block]) return false;
        if (blocks_.refcount[block] < 1 && blocks_.pins[block] < 1) return false;
        blocks_.marks[block] = static_cast<int64_t>(run_.size());
        run_.push_back(block);
      }
    }
    for (size_t i = 0; i < run_.size(); ++i)
      if (blocks_.marks[run_[i]] != static_cast<int64_t>(i)) return false;  // it stands twice
    tree_->hang(columns, parent, content, num_pages, nodes_);
    for (int64_t group = 0; group < rows_.num_groups; ++group) {
      const Items<int64_t> block_of(block_of_node_[group], true, columns.parent.size());
      for (int64_t i = 0; i < num_pages; ++i) {
        const int64_t block = run_[group * num_pages + i];
        block_of[nodes_[i]] = block;
        node_of[block] = nodes_[i];
        group_of[block] = group;
        blocks_.indexed[block] = true;
      }
    }
    set_attribute(sequence, names_.node, nb::int_(nodes_.back()));
    return true;
  }

  int64_t page_size_;
  struct {  // of attributes
    nb::object tokens = interned("tokens"), tables = interned("tables"), entries = interned("entries");
    nb::object tiers = interned("_tiers"), num_pages = interned("_num_pages"), grow = interned("_grow");
    nb::object away = interned("away"), scope = interned("scope"), media = interned("media"), node = interned("_node");
  } names_;
  RowColumns rows_{};
  BlockColumns blocks_{};
  std::vector<int64_t> run_, nodes_;  // scratch
  std::vector<int32_t> fresh_;
  std::optional<PageTreeBinding> tree_;
  std::optional<LruBinding> lru_;
  std::vector<nb::object> block_of_node_;
  std::optional<Items<int64_t>> node_of_block_, group_of_block_;
  nb::object root_users_;
  Lines<int64_t> numbers_;
  Column<bool> is_alive_, is_special_, indexed_;
  Lines<int32_t> tail_;
  Column<int32_t> refcount_, pins_, free_;
  Column<uint8_t> states_;
  Column<int64_t> marks_, counts_;
  Column<const uint8_t> given_, dropped_, kept_;
};

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
  nb::class_<Books>(m, "Books", "The columns of a paged cache, for what is done to them in one call.")
      .def(nb::init<int64_t>(), "page_size"_a)
      .def("bind_rows", &Books::bind_rows, "numbers"_a.noconvert(), "is_alive"_a.noconvert(),
           "is_special"_a.noconvert(), "tail"_a.noconvert())
      .def("bind_blocks", &Books::bind_blocks, "refcount"_a.noconvert(), "pins"_a.noconvert(), "indexed"_a.noconvert(),
           "states"_a.noconvert(), "marks"_a.noconvert(), "free"_a.noconvert(), "counts"_a.noconvert(), "given"_a.noconvert(),
           "dropped"_a.noconvert(), "kept"_a.noconvert())
      .def("bind_pages", &Books::bind_pages, "tree"_a, "blocks"_a, "node_of_block"_a, "group_of_block"_a,
           "root_users"_a)
      .def("find", &Books::find, "root"_a, "ids"_a, "num_pages"_a)
      .def("publish", &Books::publish, "rows"_a, "sequences"_a, "growing"_a, "begin"_a, "num_growing"_a)
      .def("open", &Books::open, "rows"_a, "counts"_a, "sequences"_a, "starts"_a, "tails"_a, "new_pages"_a)
      .def("map", &Books::map, "rows"_a, "sequences"_a, "starts"_a, "new_pages"_a, "fresh"_a, "device"_a)
      .def("map_free", &Books::map_free, "rows"_a, "sequences"_a, "starts"_a, "new_pages"_a, "needed"_a, "device"_a)
      .def("opened", &Books::opened, "rows"_a, "counts"_a, "tails"_a)
      .def("settle", &Books::settle, "rows"_a, "counts"_a, "starts"_a, "growing"_a)
      .def("end", &Books::end, "row"_a, "table"_a, "root"_a.none(), "index"_a, "lru"_a);
}

}  // namespace kv
