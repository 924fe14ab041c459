"""The prefix index: a tree of published pages, one root per scope. Finds content, owns no blocks, evicts nothing.

    root(scope) --[t0..t15]--> node --[t16..t31]--> node          an edge is the exact content of a page:
                                 \\--[t16'..t31']--> node          token ids as int32, then the media in it

A look-up walks the edges by comparing the content itself, so a hit can't be another content's, however keys collide
(open case O-10); the SHA-256 key of a node is computed from its parents when something asks for it. A node has up to
one block per layer group. Nodes are numbers into arrays, not objects, so that a million of them cost the garbage
collector nothing; a node that has children keeps its number, so no child can ever hang under a stranger (O-01).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvpager.errors import InvariantError
from kvpager.prefix.hashing import page_key
from kvpager.types import ContentKey, NodeId, PageReason

MAX_CANDIDATES = 32  # pages compared to find a hit inside a page
_NONE = -1  # in the arrays only
_FIRST_TOKEN = 12  # bytes of an edge up to its first token: the parent's number and one id


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
        self._node_by_edge: dict[bytes, int] = {}
        self._root_by_key: dict[ContentKey, int] = {}
        self._root_users: dict[int, int] = {}  # sequences that stand on a root
        self._labels: list[bytes | None] = []
        self._edge_prefix: list[bytes] = []  # the node's number as 8 bytes: the head of its children's edges
        self._keys: list[ContentKey | None] = []
        self._free_nodes: list[int] = []
        self._parent: list[int] = []
        self._num_children: list[int] = []
        self._child_by_token: dict[bytes, int] = {}  # edge prefix + first token -> the last child that begins with it
        self._next_sibling: list[int] = []
        self._previous_sibling: list[int] = []
        self._blocks: list[list[int]] = [[] for _ in range(num_groups)]
        self._node_of_block = [_NONE] * num_blocks
        self._group_of_block = [0] * num_blocks
        self.num_entries = 0  # published blocks
        self.watcher: IndexWatcher | None = None

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """Nodes in use, roots included."""
        return len(self._labels) - len(self._free_nodes)

    def find_root(self, key: ContentKey) -> NodeId | None:
        node = self._root_by_key.get(key)
        return None if node is None else NodeId(node)

    def match(self, root: NodeId, labels: list[bytes]) -> list[NodeId]:
        """The longest chain of nodes whose edges are ``labels``, from the root down."""
        nodes: list[int] = []
        prefix_of_node, find = self._edge_prefix, self._node_by_edge.get
        node: int | None = root
        for label in labels:
            node = find(prefix_of_node[node] + label)  # type: ignore[index]
            if node is None:
                break
            nodes.append(node)
        return nodes  # type: ignore[return-value]

    def match_inside(self, parent: NodeId, tokens: bytes) -> PartialMatch | None:
        """The child of ``parent`` that shares the longest run of leading tokens with ``tokens`` (int32 bytes).

        Compared are the latest MAX_CANDIDATES children that begin with the same token, have no media, and have a block
        in every group: a bound on the time, not on what may be shared.
        """
        best: PartialMatch | None = None
        child = self._child_by_token.get(self._edge_prefix[parent] + tokens[:4], _NONE)
        for _ in range(MAX_CANDIDATES):
            if child == _NONE:
                break
            label = self._labels[child]
            if label is not None and len(label) == self._page_bytes and self.has_all_blocks(NodeId(child)):
                common = _common_tokens(label, tokens)
                if common and (best is None or common > best.num_tokens):
                    best = PartialMatch(NodeId(child), common)
            child = self._next_sibling[child]
        return best

    def block(self, node: NodeId, group: int) -> int | None:
        block = self._blocks[group][node]
        return None if block == _NONE else block

    def blocks_in_group(self, nodes: Sequence[NodeId], group: int) -> list[int | None]:
        """``block`` of many nodes at once."""
        column = self._blocks[group]
        blocks: list[int | None] = [column[node] for node in nodes]
        return [None if block == _NONE else block for block in blocks] if _NONE in blocks else blocks

    def has_all_blocks(self, node: NodeId) -> bool:
        return all(blocks[node] != _NONE for blocks in self._blocks)

    def parent(self, node: NodeId) -> NodeId:
        return NodeId(self._parent[node])

    def label(self, node: NodeId) -> bytes | None:
        """The edge that leads to a node: the content of its page. None for a root."""
        return self._labels[node]

    def is_leaf(self, node: NodeId) -> bool:
        return self._num_children[node] == 0

    def node_of_block(self, block: int) -> NodeId:
        node = self._node_of_block[block]
        if node == _NONE:
            raise InvariantError(f"block {block} is not in the prefix index")
        return NodeId(node)

    def group_of_block(self, block: int) -> int:
        return self._group_of_block[block]

    def key(self, node: NodeId) -> ContentKey:
        """The content key of a node; computed once, from its parents."""
        missing = []
        at = int(node)
        while self._keys[at] is None:
            missing.append(at)
            at = self._parent[at]
        key = self._keys[at]
        for child in reversed(missing):
            label = self._labels[child]
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
            node = self._new_node(_NONE, None)
            self._keys[node] = key
            self._root_by_key[key] = node
            self._root_users[node] = 0
        self._root_users[node] += 1
        return NodeId(node)

    def leave_root(self, root: NodeId) -> None:
        """One user less; a root without users and pages goes."""
        self._root_users[root] -= 1
        self.prune(root)

    def open_child(self, parent: NodeId, label: bytes) -> NodeId:
        """The child of ``parent`` with this edge, made (without blocks) if it is not there."""
        edge = self._edge_prefix[parent] + label
        node = self._node_by_edge.get(edge)
        if node is None:
            node = self._new_node(int(parent), label)
            self._node_by_edge[edge] = node
            first = edge[:_FIRST_TOKEN]
            head = self._child_by_token.get(first, _NONE)
            self._next_sibling[node] = head
            if head != _NONE:
                self._previous_sibling[head] = node
            self._child_by_token[first] = node
            self._num_children[parent] += 1
        return NodeId(node)

    def attach(self, node: NodeId, group: int, block: int, why: PageReason = PageReason.PUBLISHED) -> None:
        """The page of ``node`` is held by ``block`` in ``group``. Raises if either is taken."""
        if self._blocks[group][node] != _NONE or self._node_of_block[block] != _NONE:
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
        self._blocks[self._group_of_block[block]][node] = _NONE
        self._node_of_block[block] = _NONE
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
        return [blocks[node] for blocks in self._blocks if blocks[node] != _NONE]

    def with_descendants(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """These and all nodes under them, children before parents. O(all nodes) where others hang under them."""
        depth: dict[int, int] = {}
        inside = {int(node) for node in nodes}
        known = Counter(self._parent[node] for node in inside)
        if any(self._num_children[node] != known[node] for node in inside):
            inside |= self._under(inside)
        for node in inside:
            path, at = [], node
            while at in inside and at not in depth:
                path.append(at)
                at = self._parent[at]
            above = depth.get(at, 0)
            depth.update((each, above + up) for up, each in enumerate(reversed(path), 1))
        return [NodeId(node) for node in sorted(inside, key=lambda node: -depth[node])]

    def _under(self, nodes: set[int]) -> set[int]:
        is_under = dict.fromkeys(nodes, True) | {_NONE: False}
        for node in self._node_by_edge.values():
            path, at = [], node
            while at not in is_under:
                path.append(at)
                at = self._parent[at]
            is_under.update(dict.fromkeys(path, is_under[at]))
        return {node for node, under in is_under.items() if under}

    def prune(self, node: NodeId) -> NodeId:
        """Removes ``node`` and then its parents, as long as nothing hangs on them and nobody uses them.

        Returns the first that stays; a root also where it goes.
        """
        at = int(node)
        while self._num_children[at] == 0 and not self.blocks_of(NodeId(at)):
            parent = self._parent[at]
            if parent == _NONE:
                if self._root_users[at] == 0:
                    self._remove_root(at)
                return NodeId(at)
            self._unlink(at, parent)
            at = parent
        return NodeId(at)

    def all_blocks(self) -> np.ndarray:
        """Every published block."""
        return np.flatnonzero(np.array(self._node_of_block) != _NONE).astype(np.int32)

    @property
    def num_scopes(self) -> int:
        return len(self._root_by_key)

    def resize(self, num_blocks: int) -> None:
        """The pool grew or shrank. REQUIRES: no block above the new size is published."""
        for column, empty in ((self._node_of_block, _NONE), (self._group_of_block, 0)):
            del column[num_blocks:]
            column.extend([empty] * (num_blocks - len(column)))

    def move(self, source: int, target: int) -> None:
        """The content of block ``source`` lies in ``target`` now."""
        node, group = self._node_of_block[source], self._group_of_block[source]
        self._node_of_block[source] = _NONE
        self._node_of_block[target] = node
        self._group_of_block[target] = group
        self._blocks[group][node] = target
        if self.watcher is not None:
            self.watcher.moved(NodeId(node), group, target)

    # -- inside -------------------------------------------------------------------------------------------------

    def _new_node(self, parent: int, label: bytes | None) -> int:
        if self._free_nodes:
            node = self._free_nodes.pop()
        else:
            node = len(self._labels)
            for column in (self._parent, self._next_sibling, self._previous_sibling, *self._blocks):
                column.append(_NONE)
            self._num_children.append(0)
            self._labels.append(None)
            self._keys.append(None)
            self._edge_prefix.append(node.to_bytes(8, "little"))
        self._parent[node] = parent
        self._labels[node] = label
        return node

    def _unlink(self, node: int, parent: int) -> None:
        label = self._labels[node]
        assert label is not None
        edge = self._edge_prefix[parent] + label
        del self._node_by_edge[edge]
        self._num_children[parent] -= 1
        before, after = self._previous_sibling[node], self._next_sibling[node]
        if before != _NONE:
            self._next_sibling[before] = after
        elif after != _NONE:
            self._child_by_token[edge[:_FIRST_TOKEN]] = after
        else:
            del self._child_by_token[edge[:_FIRST_TOKEN]]
        if after != _NONE:
            self._previous_sibling[after] = before
        self._recycle(node)

    def _remove_root(self, root: int) -> None:
        key = self._keys[root]
        assert key is not None
        del self._root_by_key[key], self._root_users[root]
        self._recycle(root)

    def _recycle(self, node: int) -> None:
        self._parent[node] = self._next_sibling[node] = self._previous_sibling[node] = _NONE
        self._labels[node] = self._keys[node] = None
        self._free_nodes.append(node)

    def check(self) -> None:
        """Raises InvariantError unless edges, blocks and keys agree (I11, I12, I16)."""
        for edge, node in self._node_by_edge.items():
            parent = int.from_bytes(edge[:8], "little")
            if self._parent[node] != parent or self._labels[node] != edge[8:]:
                raise InvariantError(f"edge to node {node} does not match the node")
            if self._parent[parent] == _NONE and self._keys[parent] not in self._root_by_key:
                raise InvariantError(f"node {node} hangs under {parent}, which is gone")
            if self._num_children[node] == 0 and not self.blocks_of(NodeId(node)):
                raise InvariantError(f"node {node} has neither blocks nor children")
            known, self._keys[node] = self._keys[node], None
            if self.key(NodeId(node)) != known and known is not None:
                raise InvariantError(f"the key of node {node} is not the key of its content")
            self._keys[node] = known
        self._check_children()
        entries = 0
        for group, blocks in enumerate(self._blocks):
            for node, block in enumerate(blocks):
                if block != _NONE:
                    entries += 1
                    if self._node_of_block[block] != node or self._group_of_block[block] != group:
                        raise InvariantError(f"node {node} names block {block}, which names another")
        if entries != self.num_entries or entries != len(self.all_blocks()):
            raise InvariantError("the number of published blocks is wrong")

    def _check_children(self) -> None:
        counted = [0] * len(self._labels)
        for edge in self._node_by_edge:
            counted[int.from_bytes(edge[:8], "little")] += 1
        linked = 0
        for first, head in self._child_by_token.items():
            child = head
            while child != _NONE:
                label = self._labels[child]
                if label is None or self._edge_prefix[self._parent[child]] + label[:4] != first:
                    raise InvariantError(f"node {child} is listed among children that begin otherwise")
                linked, child = linked + 1, self._next_sibling[child]
        if linked != len(self._node_by_edge) or counted != self._num_children:
            raise InvariantError("the numbers of children are wrong")


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many leading int32 ids agree."""
    length = min(len(one), len(other))
    same = np.frombuffer(one[:length], np.int32) == np.frombuffer(other[:length], np.int32)
    return len(same) if same.all() else int(np.argmin(same))
