"""Making blocks free: cached pages go, by the policy's order, leaves first. Never touches a page that is in use.

Three watermarks, in free blocks, min <= low <= high:

    free below low    background reclaim, at the end of a step, up to high
    free too few      direct reclaim, inside the call that needs blocks, exactly as many as it lacks
    free below min    the engine admits no new request (running ones may still use what is left)

Where there are tiers below, a page that none of them has is copied down first, unless all of them hold better ones: in
the background beside the steps, and its block becomes free when that is done; in direct reclaim at once, and only into
memory, since nothing waits for I/O.

Direct reclaim is all or nothing: where it can't free enough it drops nothing, so a call that ends in OutOfBlocks has
lost no cached page.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvpager.cache.evictable import Evictable
from kvpager.errors import ConfigError
from kvpager.memory.block_pool import BlockPool
from kvpager.prefix.index import PrefixIndex
from kvpager.types import PageReason


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Thresholds in free blocks. Raises ConfigError unless 0 <= min <= low <= high."""

    min: int = 0
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.low <= self.high:
            raise ConfigError(f"watermarks must be 0 <= min <= low <= high, not {self.min}, {self.low}, {self.high}")

    @classmethod
    def from_threshold(cls, threshold: float, num_blocks: int) -> "Watermarks":
        """From the share of free blocks below which reclaim starts: min is half of it, high one and a half."""
        if not 0.0 <= threshold < 0.5:
            raise ConfigError(f"eviction_threshold must be at least 0 and below 0.5, not {threshold}")
        low = int(threshold * num_blocks)
        return cls(min=low // 2, low=low, high=low + low // 2)


@dataclass(frozen=True, slots=True)
class ReclaimCounts:
    """Cached blocks dropped since the cache was opened, by why: for a watermark, for a call that lacked some, as their
    tenant held more than its quota, as their time to live had run out."""

    background: int
    direct: int
    quota: int = 0
    expired: int = 0


class Below(Protocol):
    """What reclaim asks of the tiers below; cache/lower_pages.py answers."""

    @property
    def num_doomed(self) -> int: ...

    def is_expendable(self, block: int) -> bool: ...

    def write_and_drop(self, block: int) -> bool: ...

    def moving_blocks(self) -> list[int]: ...

    def dropping(self, blocks: list[int]) -> None: ...


class Reclaimer:
    """Drops cached pages of one pool. ``below``: the tiers under it, set by the cache that has some."""

    def __init__(self, pool: BlockPool, index: PrefixIndex, evictable: Evictable, watermarks: Watermarks) -> None:
        self._pool = pool
        self._index = index
        self._evictable = evictable
        self.watermarks = watermarks
        self._background = 0
        self._direct = 0
        self._quota = 0
        self._expired = 0
        self.pins_yield = False  # nothing could go on otherwise: pinned pages go where nothing else is left
        self.pins_yielded = 0  # pinned pages that went so
        self.has_made_gaps = False  # in the prefix index: pages went under which others are mapped
        self.below: Below | None = None

    def counts(self) -> ReclaimCounts:
        return ReclaimCounts(self._background, self._direct, self._quota, self._expired)

    @property
    def num_reclaimable(self) -> int:
        """Blocks that reclaim could free: cached, and not pinned unless pins yield."""
        cached = self._pool.counts().cached
        return cached if self.pins_yield or self._evictable.retains is None else cached - self._pool.num_kept

    def make_free(self, needed: int) -> bool:
        """Direct reclaim until ``needed`` blocks are free. False, with nothing dropped, if that can't be reached."""
        missing = needed - self._pool.num_free
        if missing <= 0:
            return True
        if missing > self.num_reclaimable:
            return False
        self._direct += self._drop(missing)
        if self.pins_yield and self._pool.num_free < needed:
            kept = self._pool.num_kept
            with self._evictable.pins_yielding():
                self._direct += self._drop(needed - self._pool.num_free)
            self.pins_yielded += kept - self._pool.num_kept
        return self._pool.num_free >= needed

    def make_free_at_last(self, needed: int) -> bool:
        """``make_free`` of whoever nobody else could make room for: pinned pages go too, after all others."""
        before, self.pins_yield = self.pins_yield, True
        try:
            return self.make_free(needed)
        finally:
            self.pins_yield = before

    def run_background(self) -> None:
        """Brings the free blocks back to the high watermark if they fell below low, as far as cached pages go."""
        free = self._pool.num_free
        if free >= self.watermarks.low:
            return
        wanted = min(self.watermarks.high - free, self.num_reclaimable)
        if self.below is None:
            self._background += self._drop(wanted)
        else:
            self._write_and_drop(self.below, wanted - self.below.num_doomed)

    def _write_and_drop(self, below: Below, wanted: int) -> None:
        """Drops pages that need no copy and begins to copy the others, as far as the next ``wanted`` victims go."""
        refused = []
        for _ in range(wanted):
            block = self._evictable.victim()
            if block is None:
                break
            dirty = [each for each in self._evictable.goes_with(block) if not below.is_expendable(each)]
            for each in dirty:
                below.write_and_drop(each)
            if not dirty:
                self._background += self._evict([block])
            elif self._pool.is_cached(np.array([block]))[0]:  # it is not on its way: the next victim may be
                self._evictable.held(np.array([block]))
                refused.append(block)
        left = [block for block in refused if self._pool.indexed[block]]  # others went with one of another group
        self._evictable.settled(np.array(left, np.int64))

    def drop_written(self, block: int) -> None:
        """A cached block has been copied down so that it can go: it does, if blocks are still short and it may."""
        if self._pool.num_free < self.watermarks.high and self._evictable.may_go(block):
            self._background += self._evict([block])

    def _drop(self, wanted: int) -> int:
        """Frees ``wanted`` cached blocks or a few more, or as many as can go; returns how many."""
        dropped = 0
        while dropped < wanted:
            freed = self._evict(self._victims(wanted - dropped)) or self._drop_left_behind(wanted - dropped)
            if not freed and not self._forget_moving():
                break
            dropped += freed
        return dropped

    def _victims(self, count: int) -> Iterator[int]:
        """Each block that should go next, once the one before has gone."""
        while count > 0 and (block := self._evictable.victim()) is not None:
            yield block
            count -= 1

    def _drop_left_behind(self, wanted: int) -> int:
        """Pages in the midst of what is mapped, which their sequences have given back."""
        blocks = self._evictable.left_behind()[:wanted]
        if not blocks:
            return 0
        self.has_made_gaps = True
        if self.below is not None:
            self.below.dropping(blocks)
        ids = np.array(blocks, np.int32)
        self._evictable.left(ids)
        for block in blocks:
            self._index.detach(block)
        return len(self._pool.unpublish(ids))

    def _forget_moving(self) -> bool:
        """Unmapped blocks that are being copied down leave the index, so that the pages they hang under can go.

        They are free when the copy has ended; a tier that hangs must not keep whole prefixes from being reclaimed.
        """
        before = self._index.num_entries
        for block in [] if self.below is None else self.below.moving_blocks():
            if (
                self._pool.refcount[block] == 0
                and self._pool.indexed[block]
                and (self._evictable.pins_yield or not self._pool.kept[block])
                and self._evictable.is_needed_by_none(block)
            ):
                self._evict([block])
        return self._index.num_entries < before

    def evict(self, block: int) -> None:
        """Drops one block that may go, for a quota: whether blocks are short or not."""
        self._quota += self._evict([block])

    def forget(self, blocks: Iterable[int]) -> int:
        """Drops what nobody maps of findable blocks, given children before parents, and overwrites it; nothing is saved
        below. Blocks that a transfer holds are free when it has ended. Returns how many are free at once."""
        index, gone = self._index, [block for block in blocks if self._pool.refcount[block] == 0]
        ids = np.array(gone, np.int32)
        if not gone:
            return 0
        self._pool.arena.fill(ids[self._pool.is_cached(ids)], 0)
        self._evictable.left(ids)
        nodes = [index.node_of_block(block) for block in gone]
        left = [index.detach(block, PageReason.FORGOTTEN) for block in gone]
        freed = self._pool.unpublish(ids)
        self._expired += len(freed)
        for node, stayed in zip(nodes, left, strict=True):
            if stayed != node:
                self._evictable.lost_child(stayed)
        return len(freed)

    def _evict(self, blocks: Iterable[int]) -> int:
        """Frees blocks that may go, and what becomes unreachable with them; returns how many became free."""
        gone: list[int] = []
        try:
            for block in blocks:
                together = self._evictable.goes_with(block)
                if self.below is not None:
                    self.below.dropping(together)
                self._evictable.left(np.array(together))
                node = self._index.node_of_block(block)
                left = [self._index.detach(each) for each in together][-1]
                gone += together
                if left != node:
                    self._evictable.lost_child(left)
        finally:
            freed = self._pool.unpublish(np.array(gone, np.int32))
        return len(freed)
