// The books of a paged cache, bound to its columns: the opening and closing of a plain step, publication and look-up of
// its pages, and the end of a plain sequence, in one call each. Knows no policy but LRU's order.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "books.h"
#include "evictable_binding.h"
#include "items.h"
#include "lru_binding.h"
#include "page_tree_binding.h"
#include "sequence_binding.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kv {
namespace {

template <class Item>
using Column = nb::ndarray<Item, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class Item>
using Lines = nb::ndarray<Item, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Of one cache. The columns stay alive here; whoever lays them out anew binds them again.
class Books {
 public:
  // `entries`: an array such as page tables have.
  Books(int64_t page_size, nb::object sequence_type, nb::object table_type, nb::object evictable_type,
        nb::handle entries)
      : page_size_(page_size), of_(std::move(sequence_type), std::move(table_type), entries),
        of_evictable_(std::move(evictable_type)) {
    if (page_size < 1) throw nb::value_error("a page has at least one token");
  }

  // `kept`: tables by row; `free`: rows that nobody has; `num_changes`: one number.
  void bind_rows(Lines<int64_t> numbers, Column<bool> is_alive, Column<bool> is_special, Lines<int32_t> tail,
                 nb::list kept, nb::list free, Column<int64_t> num_changes) {
    const size_t rows = is_alive.shape(0);
    if (numbers.shape(0) < 5 || numbers.shape(1) != rows || is_special.shape(0) != rows || tail.shape(1) != rows ||
        kept.size() != rows || num_changes.shape(0) != 1)
      throw nb::value_error("the columns differ in length");
    tables_.clear(), tables_.resize(rows);
    kept_tables_ = std::move(kept), free_rows_ = std::move(free), num_changes_ = std::move(num_changes);
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
      const nb::handle sequence = PyTuple_GET_ITEM(sequences.ptr(), i);
      if (!of_.is_sequence(sequence) || of_.num_known_tokens(sequence) - start < count) return -1;
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
           uint8_t device) {
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
  void bind_pages(nb::object tree, nb::list blocks, nb::object node_of_block, nb::object group_of_block) {
    if (static_cast<int64_t>(blocks.size()) != rows_.num_groups) throw nb::value_error("the groups differ in number");
    tree_.emplace(std::move(tree), page_size_);
    block_of_node_.clear();
    for (nb::handle each : blocks) block_of_node_.push_back(nb::borrow(each));
    node_of_block_.emplace(node_of_block, true, blocks_.num_blocks);
    group_of_block_.emplace(group_of_block, true, blocks_.num_blocks);
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

  // The policy whose order the next end() keeps, probably: so that it need not be looked at then.
  void bind_lru(nb::handle lru) { lru_.emplace(lru, blocks_.num_blocks); }

  // A sequence ends: the pages of its only table go back, the last page first, and it leaves its root and its place
  // among `sequences`. What is cached then is ranked by the policy, and offered where nothing hangs under it. False, with
  // nothing changed, where the sequence or `evictable` is not plain, or columns were laid out anew.
  // REQUIRES: bind_pages(), one layer group without a window, no runs and no poison.
  bool end(nb::handle sequence, nb::handle evictable, nb::handle sequences) {
    if (!of_.is_sequence(sequence) || !of_.away.of(sequence).is_none()) return false;
    if (!of_evictable_.is_plain(evictable) || num_changes_(0) < 0 || blocks_.counts[FREE] < 0) return false;
    const nb::object number = nb::borrow(of_.row.of(sequence)), root = nb::borrow(of_.root.of(sequence));
    const int64_t row = whole_number(number.ptr());
    if (row < 0 || row >= rows_.num_rows || rows_.open_steps[row] != 0 || !rows_.is_alive[row]) return false;
    tables_[row].read_ahead();
    const TreeColumns& columns = tree_->columns();
    const int64_t root_node = root.is_none() ? NO_NODE : checked_root(columns, root);
    const nb::handle lru = of_evictable_.lru.of(evictable);
    if (!lru_ || !lru_->is_of(lru)) bind_lru(lru);
    if (!lru_->is_native() || !give_back_pages(columns, of_.table(sequence, 0))) return false;
    keep_table(row, sequence);
    leave_row(row);
    of_.row.set(sequence, nb::int_(NO_ROW));
    of_.is_freed.set(sequence, nb::bool_(true));
    if (PyList_Append(free_rows_.ptr(), number.ptr()) || PyDict_DelItem(sequences.ptr(), number.ptr()))
      nb::raise_python_error();
    if (root_node != NO_NODE && --columns.num_users[root_node] == 0 && PageTreeBinding::is_leaf(columns, root_node))
      of_evictable_.index.of(evictable).attr("prune")(root);
    return true;
  }

 private:
  bool map_to(nb::handle rows, const nb::tuple& sequences, nb::handle starts, nb::handle new_pages,
              const int32_t* blocks, int64_t num_blocks, uint8_t device) {
    const int64_t num = static_cast<int64_t>(sequences.size());
    const Items<int64_t> which(rows, false, num), start_of(starts, false, num), pages_of(new_pages, false, num);
    struct Part {
      nb::handle sequence;
      nb::object table;
      int64_t row, group, page, count;
    };
    std::vector<Part> parts;
    int64_t needed = 0;
    for (int64_t group = 0; group < rows_.num_groups; ++group)
      for (int64_t i = 0; i < num; ++i) {
        const int64_t count = pages_of.data()[i], page = pages_up_to(start_of.data()[i], page_size_);
        if (count < 1) continue;
        const nb::handle sequence = PyTuple_GET_ITEM(sequences.ptr(), i);
        if (!of_.is_sequence(sequence)) return false;
        nb::object table = nb::borrow(of_.table(sequence, group));
        if (of_.num_table_pages(table) > page) return false;
        if (which.data()[i] < 0 || which.data()[i] >= rows_.num_rows) return false;
        parts.push_back({sequence, std::move(table), which.data()[i], group, page, count});
        needed += count;
      }
    if (needed > num_blocks) throw nb::value_error("there are fewer blocks than pages");
    const int32_t* next = blocks;
    for (const Part& part : parts) {
      const int64_t stop = part.page + part.count;
      if (of_.entries_of(part.table, 0).size() < stop) part.table.attr(grow_)(stop);
      std::memcpy(of_.entries_of(part.table, stop).data() + part.page, next, part.count * sizeof(int32_t));
      if (const nb::handle owner = of_.tiers.of(part.table); !owner.is_none()) {
        const Items<uint8_t> tiers(owner, true, stop);
        std::memset(tiers.data() + part.page, device, part.count);
      }
      of_.num_pages.set(part.table, nb::int_(stop));
      if (rows_.num_groups == 1) know_table(part.row, part.sequence);
      next += part.count;
      rows_.tail[part.group * rows_.num_rows + part.row] = next[-1];
    }
    return true;
  }

  // Who has it counts as one of its users.
  static int64_t checked_root(const TreeColumns& columns, nb::handle root) {
    const int64_t node = whole_number(root.ptr());
    if (node < 0 || node >= columns.num_users.size() || columns.num_users[node] < 1)
      throw nb::value_error("nobody uses this root");
    return node;
  }

  bool give_back_pages(const TreeColumns& columns, nb::handle table) {
    const int64_t num_pages = of_.num_table_pages(table);
    const Entries entries = of_.entries_of(table, num_pages);
    Released released;
    if (!release_last_first(blocks_, entries.data(), num_pages, released)) return false;
    if (released.num_cached) {
      const int32_t* last = entries.data() + num_pages - 1 - released.num_freed;
      // Only the last page can be a leaf: the others have the next one.
      lru_->release(last, released.num_cached, PageTreeBinding::is_leaf(columns, (*node_of_block_)[*last]));
    }
    return true;
  }

  void know_table(int64_t row, nb::handle sequence) {
    RowTable& known = tables_[row];
    if (known.tables.is(of_.tables.of(sequence)) && known.array.is(of_.entries.of(of_.table(sequence, 0)))) return;
    known = of_.row_table(sequence);
  }

  // The row has the table for its next sequence, empty, where nobody else has it.
  void keep_table(int64_t row, nb::handle sequence) {
    const RowTable& known = tables_[row];
    if (of_.has_to_itself(sequence, known)) {
      const nb::handle table = of_.table(sequence, 0);
      std::fill_n(reinterpret_cast<int32_t*>(known.entries->data), of_.num_table_pages(table), UNMAPPED);
      of_.num_pages.set(table, nb::int_(0));
      if (PyList_SetItem(kept_tables_.ptr(), row, nb::object(known.tables).release().ptr())) nb::raise_python_error();
    } else {
      tables_[row] = {};
    }
    of_.tables.set(sequence, no_tables_);
  }

  void leave_row(int64_t row) {
    rows_.is_alive[row] = rows_.is_special[row] = false;
    for (size_t line = 0; line < numbers_.shape(0); ++line) numbers_(line, row) = 0;
    for (int64_t group = 0; group < rows_.num_groups; ++group) rows_.tail[group * rows_.num_rows + row] = 0;
    ++num_changes_(0);
  }

  int64_t num_full(int64_t row) const {
    return std::min(rows_.committed[row] / page_size_, rows_.publish_until[row]);
  }

  bool publish_one(const TreeColumns& columns, int64_t* node_of, int64_t* group_of, nb::handle sequence, int64_t first,
                   int64_t stop) {
    if (!of_.is_sequence(sequence) || !of_.away.of(sequence).is_none()) return false;
    if (PyObject_Size(attribute(of_.scope.of(sequence), media_).ptr()) != 0) return false;
    const int64_t parent = whole_number(of_.node.of(sequence).ptr()), num_pages = stop - first;
    const Items<int32_t> ids(of_.tokens.of(sequence), false, stop * page_size_);
    const int32_t* content = ids.data() + first * page_size_;
    if (parent < 0 || parent >= columns.parent.size() || !tree_->can_hang(columns, parent, content)) return false;
    run_.clear();
    for (int64_t group = 0; group < rows_.num_groups; ++group) {
      const Entries entries = of_.entries_of(of_.table(sequence, group), stop);
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
    of_.node.set(sequence, nb::int_(nodes_.back()));
    return true;
  }

  int64_t page_size_;
  SequenceBinding of_;
  EvictableBinding of_evictable_;
  nb::object media_ = interned("media"), grow_ = interned("_grow");  // attributes
  nb::object no_tables_ = nb::steal(PyTuple_New(0));
  RowColumns rows_{};
  BlockColumns blocks_{};
  std::vector<int64_t> run_, nodes_;  // scratch
  std::vector<int32_t> fresh_;
  std::vector<RowTable> tables_;  // by row, where there is one layer group
  std::optional<PageTreeBinding> tree_;
  std::optional<LruBinding> lru_;
  std::vector<nb::object> block_of_node_;
  std::optional<Items<int64_t>> node_of_block_, group_of_block_;
  nb::list kept_tables_, free_rows_;
  Lines<int64_t> numbers_;
  Column<bool> is_alive_, is_special_, indexed_;
  Lines<int32_t> tail_;
  Column<int32_t> refcount_, pins_, free_;
  Column<uint8_t> states_;
  Column<int64_t> marks_, counts_, num_changes_;
  Column<const uint8_t> given_, dropped_, kept_;
};
}  // namespace

void bind_books(nb::module_& m) {
  nb::class_<Books>(m, "Books", "The columns of a paged cache, for what is done to them in one call.")
      .def(nb::init<int64_t, nb::object, nb::object, nb::object, nb::handle>(), "page_size"_a, "sequence_type"_a, "table_type"_a,
           "evictable_type"_a, "entries"_a)
      .def("bind_rows", &Books::bind_rows, "numbers"_a.noconvert(), "is_alive"_a.noconvert(),
           "is_special"_a.noconvert(), "tail"_a.noconvert(), "kept"_a, "free"_a, "num_changes"_a.noconvert())
      .def("bind_blocks", &Books::bind_blocks, "refcount"_a.noconvert(), "pins"_a.noconvert(), "indexed"_a.noconvert(),
           "states"_a.noconvert(), "marks"_a.noconvert(), "free"_a.noconvert(), "counts"_a.noconvert(), "given"_a.noconvert(),
           "dropped"_a.noconvert(), "kept"_a.noconvert())
      .def("bind_pages", &Books::bind_pages, "tree"_a, "blocks"_a, "node_of_block"_a, "group_of_block"_a)
      .def("find", &Books::find, "root"_a, "ids"_a, "num_pages"_a)
      .def("publish", &Books::publish, "rows"_a, "sequences"_a, "growing"_a, "begin"_a, "num_growing"_a)
      .def("open", &Books::open, "rows"_a, "counts"_a, "sequences"_a, "starts"_a, "tails"_a, "new_pages"_a)
      .def("map", &Books::map, "rows"_a, "sequences"_a, "starts"_a, "new_pages"_a, "fresh"_a, "device"_a)
      .def("map_free", &Books::map_free, "rows"_a, "sequences"_a, "starts"_a, "new_pages"_a, "needed"_a, "device"_a)
      .def("opened", &Books::opened, "rows"_a, "counts"_a, "tails"_a)
      .def("settle", &Books::settle, "rows"_a, "counts"_a, "starts"_a, "growing"_a)
      .def("bind_lru", &Books::bind_lru, "lru"_a)
      .def("end", &Books::end, "sequence"_a, "evictable"_a, "sequences"_a);
}

}  // namespace kv
