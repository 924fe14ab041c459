"""Which cached blocks may go: keeps the eviction policy told of what is used, let go and evictable.

A block may go when it is cached and no other page needs it: in a full-attention group that is a leaf of the prefix
tree, in a windowed group any page, since later ones don't need it. One that a retention pins (``pool.kept``) may not.
It knows states and the tree, but no order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import NO_USE, EvictionPolicy, History, JudgingPolicy, Use
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.prefix.hashing import block_key
from kvpager.prefix.index import PrefixIndex
from kvpager.types import NodeId

_NO_KEYS = np.empty(0, np.uint64)


class Retains(Protocol):
    """What retentions have to say of blocks; cache/retention.py answers."""

    def entered(self, blocks: list[int], tenants: Sequence[str]) -> None: ...

    def left(self, blocks: np.ndarray) -> None: ...

    def moved(self, source: int, target: int) -> None: ...

    def uses(self, blocks: np.ndarray, use: Use, *, is_ours: bool) -> Iterator[tuple[np.ndarray, Use]]: ...


class Uses(Protocol):
    """Is told of findable blocks that a request found, and of those that nobody maps any more."""

    def hit(self, blocks: np.ndarray) -> None: ...

    def released(self, blocks: np.ndarray) -> None: ...


class Evictable:
    """The evictable blocks of one pool, in the order of ``policy``."""

    __slots__ = (
        "_always",
        "_has_full_group",
        "_has_window",
        "_index",
        "_judge",
        "_policy",
        "_pool",
        "lru",
        "pins_yield",
        "retains",
        "uses",
    )

    def __init__(self, layout: KVLayout, pool: BlockPool, index: PrefixIndex, policy: EvictionPolicy) -> None:
        self._pool = pool
        self._index = index
        self._has_window = [group.window is not None for group in layout.groups]
        self._has_full_group = not all(self._has_window)
        self._always = not self._has_full_group  # every block may go as soon as it is cached
        self.policy = policy
        self.retains: Retains | None = None  # once something is retained
        self.pins_yield = False  # nothing else is left: pinned blocks may go too
        self.uses: Uses | None = None  # whoever wants to hear how pages are used

    @property
    def policy(self) -> EvictionPolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._judge = policy if isinstance(policy, JudgingPolicy) else None
        self.lru = policy if type(policy) is LRU else None  # whose order a native call keeps

    # -- what happened to blocks --------------------------------------------------------------------------------

    def entered(self, blocks: np.ndarray, tenants: Sequence[str] = ()) -> None:
        """These became findable. ``tenants``: who computed each, where somebody did."""
        if len(blocks):
            self.policy.enter(blocks, self._keys(blocks.tolist()) if self.policy.uses_keys else _NO_KEYS)
            if self.retains is not None:
                self.retains.entered(blocks.tolist(), tenants)

    def hit(self, blocks: np.ndarray) -> None:
        """A request found these."""
        self.policy.hit(blocks)
        if self.uses is not None:
            self.uses.hit(blocks)

    def shared(self, blocks: np.ndarray) -> None:
        """A sequence that had computed the same content maps these from now on."""
        self.policy.withdraw(blocks)

    def released(self, unmapped: np.ndarray, cached: np.ndarray, use: Use) -> None:
        """A sequence let go of a run of its pages in one layer group, the last one first. ``unmapped``: those that are
        findable and that nobody maps any more; ``cached``: those of them that no transfer or step holds."""
        if len(unmapped):
            self._release(unmapped, use, is_ours=True)
            if self.uses is not None:
                self.uses.released(unmapped)
        if len(cached):
            self._offer_run(cached)

    def arrived(self, cached: np.ndarray, histories: Mapping[int, History]) -> None:
        """Pages of one prefix that nobody has used here yet are cached, the last one first; ``histories`` of blocks:
        how they were used before."""
        known = np.isin(cached, list(histories) if self._judge is not None else [])
        for block in cached[known].tolist():
            assert self._judge is not None
            self._judge.take_over(block, histories[block])
        self._release(cached[~known], NO_USE, is_ours=False)
        self.settled(cached)

    def got_child(self, node: NodeId) -> None:
        """A page hangs under ``node`` that did not come with a sequence: it was cached all the time, perhaps."""
        self.policy.withdraw(
            np.array([each for each in self._index.blocks_of(node) if not self._in_window(each)], np.int64)
        )

    def held(self, blocks: np.ndarray) -> None:
        """A transfer holds these, which were cached."""
        self.policy.withdraw(blocks)

    def settled(self, cached: np.ndarray) -> None:
        """Nothing holds these cached blocks any more; they count from their last use."""
        may_go = [block for block in cached.tolist() if self.is_needed_by_none(block)]
        if may_go:
            self._offer(np.array(may_go))

    def left(self, blocks: np.ndarray) -> None:
        """The content of these is gone."""
        self.policy.leave(blocks)
        if self.retains is not None:
            self.retains.left(blocks)

    def moved(self, source: int, target: int) -> None:
        """The content of block ``source`` lies in ``target`` now."""
        self.policy.move(source, target)
        if self.retains is not None:
            self.retains.moved(source, target)

    def lost_child(self, node: NodeId) -> None:
        """A page below ``node`` is gone: if it was the last, the page of ``node`` may go too."""
        if self._index.label(node) is None or not self._index.is_leaf(node):
            return
        blocks = np.array([block for block in self._index.blocks_of(node) if not self._in_window(block)], np.int64)
        if len(blocks):
            self._offer(blocks[self._pool.is_cached(blocks)])

    @contextmanager
    def pins_yielding(self) -> Iterator[None]:
        """Inside, pinned blocks are evictable as others are."""
        kept = np.flatnonzero(self._pool.kept)
        self.pins_yield = True
        try:
            self.settled(kept[self._pool.is_cached(kept)])
            yield
        finally:
            self.pins_yield = False
            self.policy.withdraw(np.flatnonzero(self._pool.kept))

    # -- questions ----------------------------------------------------------------------------------------------

    def history(self, block: int) -> History | None:
        """Of a block that was let go, where the policy judges."""
        return None if self._judge is None else self._judge.history(block)

    @property
    def asks_for_use(self) -> bool:
        """Whether it matters what is known of a request that lets go of its pages."""
        return self.retains is not None or not getattr(self._policy, "ignores_use", False)

    def victim(self) -> int | None:
        """The block that should go first."""
        return self.policy.victim()

    def goes_with(self, block: int) -> list[int]:
        """A block that may go, and what nobody could reach without it."""
        return [block] if self._in_window(block) else self._index.blocks_of(self._index.node_of_block(block))

    def with_dependants(self, blocks: list[int]) -> list[int]:
        """These and what nobody could reach without them, children before parents."""
        index = self._index
        nodes = {index.node_of_block(block) for block in blocks if not self._in_window(block)}
        found = [block for node in index.with_descendants(nodes) for block in index.blocks_of(node)]
        return [*found, *set(blocks).difference(found)]

    def left_behind(self) -> list[int]:
        """Cached blocks of pages that a running sequence has given back while it maps pages that hang under them, the
        last one first. They are no leaves, but nobody maps them: where no leaf is left, they may go, and nothing that
        hangs under them is found any more."""
        index, pool = self._index, self._pool
        published = index.all_blocks()
        above_mapped = self._nodes_above(published[pool.refcount[published] > 0])
        if not self.pins_yield:
            above_mapped -= self._nodes_above(published[pool.kept[published]])
            published = published[~pool.kept[published]]
        found = [
            block
            for block in published[pool.is_cached(published)].tolist()
            if index.node_of_block(block) in above_mapped and not self._in_window(block)
        ]
        return sorted(found, key=index.node_of_block, reverse=True)

    def _nodes_above(self, blocks: np.ndarray) -> set[NodeId]:
        """Nodes under which one of these hangs."""
        index, found = self._index, set[NodeId]()
        for block in blocks.tolist():
            node = index.node_of_block(block)
            while index.label(node) is not None and (node := index.parent(node)) not in found:
                found.add(node)
        return found

    def may_go(self, block: int) -> bool:
        """Whether a published block is evictable."""
        is_cached, is_kept = self._pool.is_cached(np.array([block]))[0], self._pool.kept[block] and not self.pins_yield
        return bool(is_cached and not is_kept) and self.is_needed_by_none(block)

    def is_needed_by_none(self, block: int) -> bool:
        """Whether no other page is unreachable without this one."""
        return self._in_window(block) or self._index.is_leaf(self._index.node_of_block(block))

    def _in_window(self, block: int) -> bool:
        return self._always or self._has_window[self._index.group_of_block(block)]

    def _release(self, blocks: np.ndarray, use: Use, *, is_ours: bool) -> None:
        if self.retains is None:
            self.policy.release(blocks, use)
            return
        for some, theirs in self.retains.uses(blocks, use, is_ours=is_ours):
            self.policy.release(some, theirs)

    def _offer(self, blocks: np.ndarray) -> None:
        if self.retains is not None and not self.pins_yield:
            blocks = blocks[~self._pool.kept[blocks]]
        if len(blocks):
            self.policy.offer(blocks)

    def _offer_run(self, cached: np.ndarray) -> None:
        """Of a run of a full-attention group only the last page can be a leaf: the others have the next one."""
        first = int(cached[0])
        if self._in_window(first):
            self._offer(cached)
        elif self._index.is_leaf(self._index.node_of_block(first)):
            self._offer(cached[:1])

    def _keys(self, blocks: Iterable[int]) -> np.ndarray:
        index = self._index
        names = (block_key(index.key(index.node_of_block(each)), index.group_of_block(each)) for each in blocks)
        return np.array([int.from_bytes(name[:8], "little") for name in names], np.uint64)

    def check(self) -> None:
        """Raises InvariantError unless exactly the evictable blocks are offered to the policy."""
        published = self._index.all_blocks()
        cached = published[self._pool.is_cached(published)]
        loose = cached[~self._pool.kept[cached]]
        self.policy.check(np.array([each for each in loose.tolist() if self.is_needed_by_none(each)], np.int64))
        if len(loose) and self.policy.victim() is None and self._pool.counts().moving == 0 == self._pool.counts().used:
            raise InvariantError("blocks are cached, and none of them may go")
