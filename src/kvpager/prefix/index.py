"""The prefix index: a tree of published pages, one root per scope. Finds content, owns no blocks, evicts nothing.

    root(scope) --[t0..t15]--> node --[t16..t31]--> node          an edge is the exact content of a page:
                                 \\--[t16'..t31']--> node          token ids as int32, then the media in it

A look-up walks the edges by comparing the content itself (prefix/tree.py), so a hit can't be another content's, however
keys collide (open case O-10); the SHA-256 key of a node is computed from its parents when something asks for it. A node
has up to one block per layer group. Nodes are numbers into arrays, not objects, so that a million of them cost the
garbage collector nothing; a node that has children keeps its number, so no child can ever hang under a stranger (O-01).
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from kvpager import native
from kvpager.errors import InvariantError
from kvpager.prefix.hashing import page_key
from kvpager.prefix.tree import NONE, PageTree
from kvpager.types import ContentKey, NodeId, PageReason

MAX_CANDIDATES = 32  # pages compared to find a hit inside a page
_MOST_RESERVED = 1 << 20  # nodes that have their places from the beginning


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """A child page of which only the first ``num_tokens`` tokens agree."""

    node: NodeId
    num_tokens: int


class IndexWatcher(Protocol):
    """Is told of every page that becomes findable and of every one that is not any more."""

    def attached(self, node: NodeId, group: int, block: int, why: PageReason) -> None: ...

    def detaching(self, node: NodeId, group: int, block: int, why: PageReason) -> None:
        """It is still there."""
        ...

    def moved(self, node: NodeId, group: int, block: int) -> None:
        """It lies in ``block`` from now on."""
        ...

    def cleared(self) -> None: ...


class PrefixIndex:
    """``num_groups`` layer groups, ``page_size`` tokens a page, blocks 0 .. num_blocks-1."""

    def __init__(self, num_blocks: int, num_groups: int, page_size: int) -> None:
        self._page_bytes = 4 * page_size
        self._num_groups = num_groups
        self._tree = PageTree(self._page_bytes)
        self._root_by_key: dict[ContentKey, int] = {}
        self._keys: list[ContentKey | None] = []
        self._blocks = [array("q") for _ in range(num_groups)]
        self._tree.columns = [(self._keys, None), *((column, NONE) for column in self._blocks)]
        self._node_of_block = array("q", [NONE]) * num_blocks
        self._group_of_block = array("q", [0]) * num_blocks
        self._tree.reserve(min(num_blocks, _MOST_RESERVED))
        self.num_entries = 0  # published blocks
        self.watcher: IndexWatcher | None = None

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """Nodes in use, roots included."""
        return len(self._tree)

    def find_root(self, key: ContentKey) -> NodeId | None:
        node = self._root_by_key.get(key)
        return None if node is None else NodeId(node)

    def match(self, root: NodeId, labels: list[bytes]) -> list[NodeId]:
        """The longest chain of nodes whose edges are ``labels``, from the root, or any other node, down."""
        return self._tree.walk(root, labels)  # type: ignore[return-value]

    def match_pages(self, root: NodeId, content: bytes) -> list[NodeId]:
        """``match`` of pages that hold nothing but token ids, given in one piece: int32 bytes."""
        return self._tree.walk_pages(root, content)  # type: ignore[return-value]

    def match_inside(self, parent: NodeId, tokens: bytes) -> PartialMatch | None:
        """The child of ``parent`` that shares the longest run of leading tokens with ``tokens`` (int32 bytes).

        Compared are the latest MAX_CANDIDATES children that begin with the same token, have no media, and have a block
        in every group: a bound on the time, not on what may be shared.
        """
        best: PartialMatch | None = None
        for child in islice(self._tree.latest_children(parent, tokens[:4]), MAX_CANDIDATES):
            label = self._tree.label(child)
            if label is not None and len(label) == self._page_bytes and self.has_all_blocks(NodeId(child)):
                common = _common_tokens(label, tokens)
                if common and (best is None or common > best.num_tokens):
                    best = PartialMatch(NodeId(child), common)
        return best

    def block(self, node: NodeId, group: int) -> int | None:
        block = self._blocks[group][node]
        return None if block == NONE else block

    def blocks_in_group(self, nodes: Sequence[NodeId], group: int) -> list[int | None]:
        """``block`` of many nodes at once."""
        blocks: list[int | None] = [*map(self._blocks[group].__getitem__, nodes)]
        return [None if block == NONE else block for block in blocks] if NONE in blocks else blocks

    def num_with_blocks(self, nodes: Sequence[NodeId], group: int) -> int:
        """How many of ``nodes`` have a block in ``group`` before the first that has none."""
        blocks = [*map(self._blocks[group].__getitem__, nodes)]
        return blocks.index(NONE) if NONE in blocks else len(blocks)

    def has_all_blocks(self, node: NodeId) -> bool:
        return all(blocks[node] != NONE for blocks in self._blocks)

    def parent(self, node: NodeId) -> NodeId:
        return NodeId(self._tree.parent[node])

    def label(self, node: NodeId) -> bytes | None:
        """The edge that leads to a node: the content of its page. None for a root."""
        return self._tree.label(node)

    def is_leaf(self, node: NodeId) -> bool:
        return self._tree.num_children[node] == 0

    def node_of_block(self, block: int) -> NodeId:
        node = self._node_of_block[block]
        if node == NONE:
            raise InvariantError(f"block {block} is not in the prefix index")
        return NodeId(node)

    def is_leaf_block(self, block: int) -> bool:
        """Whether nothing hangs under the page in a published block."""
        return self._tree.num_children[self.node_of_block(block)] == 0

    def group_of_block(self, block: int) -> int:
        return self._group_of_block[block]

    def columns(self) -> tuple[object, ...]:
        """What the native kernels work on, in their order."""
        return self._tree, self._blocks, self._node_of_block, self._group_of_block

    def key(self, node: NodeId) -> ContentKey:
        """The content key of a node; computed once, from its parents."""
        missing = []
        at = int(node)
        while self._keys[at] is None:
            missing.append(at)
            at = self._tree.parent[at]
        key = self._keys[at]
        for child in reversed(missing):
            label = self._tree.label(child)
            assert key is not None
            assert label is not None
            key = page_key(key, label[: self._page_bytes], label[self._page_bytes :])
            self._keys[child] = key
        assert key is not None
        return key

    # -- changes ------------------------------------------------------------------------------------------------

    def enter_root(self, key: ContentKey) -> NodeId:
        """The root of a scope, made if it is not there, with one more user. Pair with ``leave_root``."""
        node = self._root_by_key.get(key)
        if node is None:
            node = self._tree.add_root()
            self._keys[node] = key
            self._root_by_key[key] = node
        self._tree.num_users[node] += 1
        return NodeId(node)

    def leave_root(self, root: NodeId) -> None:
        """One user less; a root without users and pages goes."""
        self._tree.num_users[root] -= 1
        if self._tree.num_children[root] == 0:
            self.prune(root)

    def open_child(self, parent: NodeId, label: bytes) -> NodeId:
        """The child of ``parent`` with this edge, made (without blocks) if it is not there."""
        node = self._tree.child(parent, label)
        return NodeId(self._tree.add(parent, label) if node is None else node)

    def add_page(self, parent: NodeId, label: bytes, blocks: Sequence[int]) -> NodeId | None:
        """A new child of ``parent``, held by a block in every group; None, with nothing changed, if there is one."""
        if self._tree.child(parent, label) is not None:
            return None
        node = self._tree.add(parent, label)
        for group, block in enumerate(blocks):
            if self._node_of_block[block] != NONE:
                raise InvariantError(f"block {block} is in the prefix index already")
            self._blocks[group][node] = block
            self._node_of_block[block] = node
            self._group_of_block[block] = group
            if self.watcher is not None:
                self.watcher.attached(NodeId(node), group, block, PageReason.PUBLISHED)
        self.num_entries += len(blocks)
        return NodeId(node)

    def hang(self, parent: NodeId, content: bytes, blocks: Sequence[np.ndarray]) -> NodeId:
        """Pages that were computed one after the other, each held by a block in every group; returns the last node.

        ``content``: their token ids, int32 bytes, and no media. ``blocks`` [groups][pages]. REQUIRES: ``parent`` has no
        child of the first page's content. Raises if a block is taken.
        """
        nodes = self._tree.add_pages(parent, content)
        hold = getattr(native.module(), "hold_run", None) if isinstance(nodes, range) else None
        for group, ids in enumerate(blocks):
            if hold is not None and self.watcher is None and ids.dtype == np.int32:
                places = self._blocks[group], self._node_of_block, self._group_of_block
                if not hold(nodes[0], ids, group, *places):
                    raise InvariantError("a block is in the prefix index already")
                continue
            place = np.frombuffer(self._node_of_block, np.int64)
            if place[ids].max() != NONE:
                raise InvariantError("a block is in the prefix index already")
            place[ids] = np.arange(nodes.start, nodes.stop) if isinstance(nodes, range) else nodes
            if self._num_groups > 1:
                np.frombuffer(self._group_of_block, np.int64)[ids] = group
            column, names = self._blocks[group], ids.tolist()
            if isinstance(nodes, range):
                column[nodes.start : nodes.stop] = array("q", names)
            else:
                for node, block in zip(nodes, names, strict=True):
                    column[node] = block
            if self.watcher is not None:
                for node, block in zip(nodes, names, strict=True):
                    self.watcher.attached(NodeId(node), group, block, PageReason.PUBLISHED)
        self.num_entries += len(nodes) * len(blocks)
        return NodeId(nodes[-1])

    def hung(self, num_blocks: int) -> None:
        """The native kernels have hung pages with so many blocks into the tree."""
        self.num_entries += num_blocks

    def attach(self, node: NodeId, group: int, block: int, why: PageReason = PageReason.PUBLISHED) -> None:
        """The page of ``node`` is held by ``block`` in ``group``. Raises if either is taken."""
        if self._blocks[group][node] != NONE or self._node_of_block[block] != NONE:
            raise InvariantError(f"node {node} or block {block} is in the prefix index already")
        self._blocks[group][node] = block
        self._node_of_block[block] = node
        self._group_of_block[block] = group
        self.num_entries += 1
        if self.watcher is not None:
            self.watcher.attached(node, group, block, why)

    def detach(self, block: int, why: PageReason = PageReason.EVICTED) -> NodeId:
        """Forgets what ``block`` holds; the node stays as long as it has children or blocks in other groups.

        Returns the node, or where it went the nearest one above it that stayed.
        """
        node = self.node_of_block(block)
        if self.watcher is not None:
            self.watcher.detaching(node, self._group_of_block[block], block, why)
        self._blocks[self._group_of_block[block]][node] = NONE
        self._node_of_block[block] = NONE
        self.num_entries -= 1
        return self.prune(node)

    def detach_all(self) -> None:
        """Forgets what every block holds; roots that somebody uses stay."""
        watcher, self.watcher = self.watcher, None  # it is told once
        for block in self.all_blocks().tolist():
            self.detach(block)
        self.watcher = watcher
        if watcher is not None:
            watcher.cleared()

    def blocks_of(self, node: NodeId) -> list[int]:
        """The blocks of a node in all groups."""
        return [blocks[node] for blocks in self._blocks if blocks[node] != NONE]

    def with_descendants(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """These and all nodes under them, children before parents. O(all nodes) where others hang under them."""
        depth: dict[int, int] = {}
        inside = {int(node) for node in nodes}
        known = Counter(self._tree.parent[node] for node in inside)
        if any(self._tree.num_children[node] != known[node] for node in inside):
            inside |= self._under(inside)
        for node in inside:
            path, at = [], node
            while at in inside and at not in depth:
                path.append(at)
                at = self._tree.parent[at]
            above = depth.get(at, 0)
            depth.update((each, above + up) for up, each in enumerate(reversed(path), 1))
        return [NodeId(node) for node in sorted(inside, key=lambda node: -depth[node])]

    def _under(self, nodes: set[int]) -> set[int]:
        is_under = dict.fromkeys(nodes, True) | {NONE: False}
        for node in self._tree.nodes():
            path, at = [], node
            while at not in is_under:
                path.append(at)
                at = self._tree.parent[at]
            is_under.update(dict.fromkeys(path, is_under[at]))
        return {node for node, under in is_under.items() if under}

    def prune(self, node: NodeId) -> NodeId:
        """Removes ``node`` and then its parents, as long as nothing hangs on them and nobody uses them.

        Returns the first that stays; a root also where it goes.
        """
        at = int(node)
        while self._tree.num_children[at] == 0 and not self.blocks_of(NodeId(at)):
            parent = self._tree.parent[at]
            if parent == NONE:
                if self._tree.num_users[at] == 0:
                    self._remove_root(at)
                return NodeId(at)
            self._tree.remove(at)
            at = parent
        return NodeId(at)

    def all_blocks(self) -> np.ndarray:
        """Every published block."""
        return np.flatnonzero(np.array(self._node_of_block) != NONE).astype(np.int32)

    @property
    def num_scopes(self) -> int:
        return len(self._root_by_key)

    def resize(self, num_blocks: int) -> None:
        """The pool grew or shrank. REQUIRES: no block above the new size is published.

        The columns are laid out anew: native kernels hold the old ones, which then can't grow.
        """
        more = max(0, num_blocks - len(self._node_of_block))
        self._node_of_block = self._node_of_block[:num_blocks] + array("q", [NONE]) * more
        self._group_of_block = self._group_of_block[:num_blocks] + array("q", [0]) * more

    def move(self, source: int, target: int) -> None:
        """The content of block ``source`` lies in ``target`` now."""
        node, group = self._node_of_block[source], self._group_of_block[source]
        self._node_of_block[source] = NONE
        self._node_of_block[target] = node
        self._group_of_block[target] = group
        self._blocks[group][node] = target
        if self.watcher is not None:
            self.watcher.moved(NodeId(node), group, target)

    # -- inside -------------------------------------------------------------------------------------------------

    def _remove_root(self, root: int) -> None:
        key = self._keys[root]
        assert key is not None
        del self._root_by_key[key]
        self._tree.remove(root)

    def check(self) -> None:
        """Raises InvariantError unless edges, blocks and keys agree (I11, I12, I16)."""
        self._tree.check()
        for node in self._tree.nodes():
            parent = self._tree.parent[node]
            if self._tree.parent[parent] == NONE and self._keys[parent] not in self._root_by_key:
                raise InvariantError(f"node {node} hangs under {parent}, which is gone")
            if self._tree.num_children[node] == 0 and not self.blocks_of(NodeId(node)):
                raise InvariantError(f"node {node} has neither blocks nor children")
            known, self._keys[node] = self._keys[node], None
            if self.key(NodeId(node)) != known and known is not None:
                raise InvariantError(f"the key of node {node} is not the key of its content")
            self._keys[node] = known
        entries = 0
        for group, blocks in enumerate(self._blocks):
            for node, block in enumerate(islice(blocks, self._tree.num_places)):
                if block != NONE:
                    entries += 1
                    if self._node_of_block[block] != node or self._group_of_block[block] != group:
                        raise InvariantError(f"node {node} names block {block}, which names another")
        if entries != self.num_entries or entries != len(self.all_blocks()):
            raise InvariantError("the number of published blocks is wrong")


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many leading int32 ids agree."""
    length = min(len(one), len(other))
    same = np.frombuffer(one[:length], np.int32) == np.frombuffer(other[:length], np.int32)
    return len(same) if same.all() else int(np.argmin(same))
