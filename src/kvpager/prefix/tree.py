"""The shape of the prefix index: which page hangs under which, by content. Knows no blocks, no keys and no scopes.

    root --A--> 4 --B--> 5 --C--> 6        pages that came together are a *run*: consecutive nodes, each the only child
                         |                 of the one before, whose content lies in one piece
                         +---D--> 9        a node of several children lists them by hash: (its number, content) -> child

So a chain of new pages is made at once, and one that is there is found by comparing its whole content at once; a run
is cut in two where another child comes between. Nodes are numbers into columns, not objects; a node that has children
keeps its number.
"""

from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import islice
from typing import Any

import numpy as np

from kvpager import native
from kvpager.errors import InvariantError

NONE = -1  # in the columns only
_NOTHING = array("q", [NONE])
_GROWTH = 1024  # nodes at once, at least
_FIRST_TOKEN = 12  # bytes of an edge up to its first token: the parent's number and one id


class PageTree:
    """Nodes with labels: the content of a page as bytes, its token ids (``page_bytes``) first. Roots have none.

    ``columns`` of others, one value per node, with what an empty one holds; they grow with the nodes.
    """

    __slots__ = (
        "_child_by_token",
        "_content",
        "_free",
        "_next_sibling",
        "_node_by_edge",
        "_num_used",
        "_only_child",
        "_page_bytes",
        "_previous_sibling",
        "_run",
        "_run_pages",
        "columns",
        "num_children",
        "num_users",
        "parent",
    )

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.parent = array("q")
        self.num_children = array("q")
        self.columns: list[tuple[MutableSequence, Any]] = []  # type: ignore[type-arg]
        self._free: list[int] = []
        self._num_used = 0  # nodes from here on never were in use
        self._only_child = array("q")  # NONE where there is none, or where they are listed
        self.num_users = array("q")  # of a root: whoever stands on it
        self._run = array("q")  # the first node of its run; NONE of roots and where there is no node
        self._content: list[bytes] = []  # at the first node of a run: its pages, and perhaps more, but for a run of one
        self._run_pages: list[int] = []  # there too
        self._node_by_edge: dict[bytes, int] = {}  # of the listed ones
        self._child_by_token: dict[bytes, int] = {}  # edge up to the first token -> the last child that begins with it
        self._next_sibling: list[int] = []  # of those
        self._previous_sibling: list[int] = []

    # -- questions ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Nodes in use, roots included."""
        return self._num_used - len(self._free)

    @property
    def num_places(self) -> int:
        """The numbers of all nodes there ever were lie below this."""
        return self._num_used

    def nodes(self) -> Iterator[int]:
        """All but the roots."""
        return (node for node, run in enumerate(islice(self._run, self._num_used)) if run != NONE)

    def label(self, node: int) -> bytes | None:
        """None for a root."""
        run = self._run[node]
        if run == NONE:
            return None
        content = self._content[run]
        if self._run_pages[run] == 1:
            return content
        at = (node - run) * self._page_bytes
        return content[at : at + self._page_bytes]

    def child(self, parent: int, label: bytes) -> int | None:
        """The child with this content."""
        child = self._only_child[parent]
        if child != NONE:
            return child if self.label(child) == label else None
        return self._node_by_edge.get(_edge(parent, label)) if self.num_children[parent] else None

    def walk(self, node: int, labels: Sequence[bytes]) -> list[int]:
        """The longest chain of nodes below ``node`` that have these labels."""
        found: list[int] = []
        for label in labels:
            child = self.child(node, label)
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def walk_pages(self, node: int, content: bytes) -> list[int]:
        """The same for whole pages of token ids, one after the other, without anything else in them."""
        found: list[int] = []
        width, at = self._page_bytes, 0
        while at < len(content):
            child = self.child(node, content[at : at + width])
            if child is None:
                break
            run = self._run[child]
            begin = child - run
            pages = min(self._run_pages[run] - begin, (len(content) - at) // width)
            if pages > 1:
                theirs = self._content[run][begin * width : (begin + pages) * width]
                pages = _common_bytes(theirs, content[at : at + pages * width]) // width
            found += range(child, child + pages)
            node = found[-1]
            at += pages * width
        return found

    def latest_children(self, parent: int, first_token: bytes) -> Iterator[int]:
        """Those whose content begins with this token, the latest first."""
        child = self._only_child[parent]
        if child != NONE:
            if self._label(child).startswith(first_token):
                yield child
            return
        child = self._child_by_token.get(_edge(parent, first_token), NONE)
        while child != NONE:
            yield child
            child = self._next_sibling[child]

    # -- changes ------------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> None:
        """There is a place for so many nodes more."""
        missing = self._num_used + count - len(self.parent)
        if missing > 0:
            self._grow(max(missing, _GROWTH, len(self.parent) // 2))

    def add_root(self) -> int:
        (node,) = self._take(1)
        return node

    def add(self, parent: int, label: bytes) -> int:
        """A new child. REQUIRES: there is none with this label."""
        node = self._free.pop() if self._free else self._take(1)[0]
        self.parent[node], self._run[node] = parent, node
        self._content[node], self._run_pages[node] = label, 1
        self._link(node, parent)
        return node

    def add_pages(self, parent: int, content: bytes) -> Sequence[int]:
        """A child for the first page of ``content``, one under it for the next, and so on. REQUIRES: as ``add``."""
        width = self._page_bytes
        nodes = self._take(len(content) // width)
        at = 0
        for first, pages in _consecutive(nodes):
            self._begin_run(first, parent, content[at * width : (at + pages) * width], pages)
            at, parent = at + pages, first + pages - 1
        return nodes

    def remove(self, node: int) -> None:
        """REQUIRES: it has no children, and nobody uses it."""
        parent, run = self.parent[node], self._run[node]
        if parent != NONE:
            self.num_children[parent] -= 1
            if self._only_child[parent] == node:
                self._only_child[parent] = NONE
            else:
                self._unlist(node, parent)
        if run == node:
            self._content[node] = b""
        elif run != NONE:
            self._run_pages[run] = node - run  # nothing is left of what followed it
            if node - run == 1:
                self._content[run] = self._content[run][: self._page_bytes]
        self.parent[node] = self._run[node] = NONE
        for column, empty in self.columns:
            column[node] = empty
        self._free.append(node)

    # -- inside -------------------------------------------------------------------------------------------------

    def _label(self, node: int) -> bytes:
        label = self.label(node)
        assert label is not None
        return label

    def _take(self, count: int) -> Sequence[int]:
        """Numbers of nodes; used ones come in the order in which a run that went leaf by leaf had them."""
        if len(self._free) >= count:
            taken = self._free[: -count - 1 : -1]
            del self._free[-count:]
            return taken
        start = self._num_used
        self.reserve(count)
        self._num_used += count
        return range(start, start + count)

    def _grow(self, count: int) -> None:
        """The numbers are laid out anew: native kernels hold the old ones, which then can't grow."""
        nothing = _NOTHING * count
        self.parent = self.parent + nothing
        self._only_child = self._only_child + nothing
        self._run = self._run + nothing
        self.num_children = self.num_children + array("q", bytes(8 * count))
        self.num_users = self.num_users + array("q", bytes(8 * count))
        for column in (self._next_sibling, self._previous_sibling, self._run_pages):
            column += [NONE] * count
        self._content += [b""] * count
        for others, empty in self.columns:
            others.extend(_NOTHING * count if isinstance(others, array) else [empty] * count)

    def _begin_run(self, first: int, parent: int, content: bytes, pages: int) -> None:
        """Nodes ``first .. first+pages-1`` hang under ``parent`` and each other from now on."""
        self._content[first], self._run_pages[first] = content, pages
        begin = getattr(native.module(), "begin_run", None)
        if begin is not None:
            begin(first, pages, parent, self.parent, self._only_child, self._run, self.num_children)
        else:
            last = first + pages - 1
            numbers = array("q", range(first, last + 1))
            self._run[first : last + 1] = array("q", [first]) * pages
            self.parent[first : last + 1] = array("q", [parent]) + numbers[:-1]
            self._only_child[first:last] = numbers[1:]
            self.num_children[first:last] = array("q", [1]) * (pages - 1)
        self._link(first, parent)

    def _link(self, node: int, parent: int) -> None:
        """``parent`` has one more child."""
        if self.num_children[parent] == 0:
            self._only_child[parent] = node
        else:
            only = self._only_child[parent]
            if only != NONE:
                self._only_child[parent] = NONE
                self._cut_run(only)
                self._list(only, parent)
            self._list(node, parent)
        self.num_children[parent] += 1

    def _cut_run(self, node: int) -> None:
        """A run begins with ``node``, which was in the midst of one, perhaps."""
        run = self._run[node]
        if run == node:
            return
        at, pages = node - run, self._run_pages[run] - (node - run)
        cut = at * self._page_bytes
        self._content[node] = self._content[run][cut : cut + pages * self._page_bytes]
        self._content[run] = self._content[run][:cut]
        self._run_pages[node], self._run_pages[run] = pages, at
        self._run[node : node + pages] = array("q", [node]) * pages

    def _list(self, node: int, parent: int) -> None:
        edge = _edge(parent, self._label(node))
        self._node_by_edge[edge] = node
        first = edge[:_FIRST_TOKEN]
        head = self._child_by_token.get(first, NONE)
        self._next_sibling[node] = head
        if head != NONE:
            self._previous_sibling[head] = node
        self._child_by_token[first] = node

    def _unlist(self, node: int, parent: int) -> None:
        edge = _edge(parent, self._label(node))
        del self._node_by_edge[edge]
        before, after = self._previous_sibling[node], self._next_sibling[node]
        if before != NONE:
            self._next_sibling[before] = after
        elif after != NONE:
            self._child_by_token[edge[:_FIRST_TOKEN]] = after
        else:
            del self._child_by_token[edge[:_FIRST_TOKEN]]
        if after != NONE:
            self._previous_sibling[after] = before
        self._next_sibling[node] = self._previous_sibling[node] = NONE

    def check(self) -> None:
        """Raises InvariantError unless parents and children name each other (I11)."""
        counted, listed = [0] * self._num_used, 0
        for node in self.nodes():
            parent, run = self.parent[node], self._run[node]
            counted[parent] += 1
            only = self._only_child[parent]
            if only == NONE:
                listed += 1
                if self._node_by_edge.get(_edge(parent, self._label(node))) != node:
                    raise InvariantError(f"node {node} is not found under {parent}")
            elif only != node:
                raise InvariantError(f"node {node} hangs under {parent}, whose only child is {only}")
            if self._run[run] != run or not run <= node < run + self._run_pages[run]:
                raise InvariantError(f"node {node} is not in the run of {run}")
            if run != node and (parent != node - 1 or only != node):
                raise InvariantError(f"node {node} does not follow the one before it in its run")
        if listed != len(self._node_by_edge) or counted != self.num_children[: self._num_used].tolist():
            raise InvariantError("the numbers of children are wrong")
        linked = 0
        for first in self._child_by_token:
            for child in self.latest_children(int.from_bytes(first[:8], "little"), first[8:]):
                if _edge(self.parent[child], self._label(child))[:_FIRST_TOKEN] != first:
                    raise InvariantError(f"node {child} is listed among children that begin otherwise")
                linked += 1
        if linked != listed:
            raise InvariantError("children are missing among those that begin alike")


def _edge(parent: int, content: bytes) -> bytes:
    return parent.to_bytes(8, "little") + content


def _consecutive(nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers among ``nodes``: where each begins, and how many it has."""
    if isinstance(nodes, range) or len(nodes) == 1:
        yield nodes[0], len(nodes)
        return
    first = before = nodes[0]
    for node in nodes[1:]:
        if node != before + 1:
            yield first, before + 1 - first
            first = node
        before = node
    yield first, before + 1 - first


def _common_bytes(one: bytes, other: bytes) -> int:
    """How many leading bytes agree of two that are equally long."""
    if one == other:
        return len(one)
    return int(np.argmax(np.frombuffer(one, np.uint8) != np.frombuffer(other, np.uint8)))
