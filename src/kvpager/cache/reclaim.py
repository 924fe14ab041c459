"""Making blocks free: cached pages go, by the policy's order, leaves first. Never touches a page that is in use.

Three watermarks, in free blocks, min <= low <= high:

    free below low    background reclaim, at the end of a step, up to high
    free too few      direct reclaim, inside the call that needs blocks, exactly as many as it lacks
    free below min    the engine admits no new request (running ones may still use what is left)

Direct reclaim is all or nothing: where it can't free enough it drops nothing, so a call that ends in OutOfBlocks has
lost no cached page.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.errors import ConfigError
from kvpager.eviction.policy import EvictionPolicy
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.prefix.index import PrefixIndex


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
    """Cached blocks dropped since the cache was opened, by who needed them."""

    background: int
    direct: int


class Reclaimer:
    """Drops cached pages of one pool."""

    def __init__(
        self, layout: KVLayout, pool: BlockPool, index: PrefixIndex, policy: EvictionPolicy, watermarks: Watermarks
    ) -> None:
        self._pool = pool
        self._index = index
        self._policy = policy
        self.watermarks = watermarks
        self._has_window = [group.window is not None for group in layout.groups]
        self._has_full_group = not all(self._has_window)
        self._background = 0
        self._direct = 0

    def counts(self) -> ReclaimCounts:
        return ReclaimCounts(self._background, self._direct)

    @property
    def num_reclaimable(self) -> int:
        """Blocks that reclaim could free."""
        return self._pool.counts().cached

    def make_free(self, needed: int) -> bool:
        """Direct reclaim until ``needed`` blocks are free. False, with nothing dropped, if that can't be reached."""
        missing = needed - self._pool.num_free
        if missing <= 0:
            return True
        if missing > self.num_reclaimable:
            return False
        self._direct += self._drop(missing)
        return True

    def run_background(self) -> None:
        """Brings the free blocks back to the high watermark if they fell below low, as far as cached pages go."""
        free = self._pool.num_free
        if free < self.watermarks.low:
            self._background += self._drop(min(self.watermarks.high - free, self.num_reclaimable))

    def _drop(self, wanted: int) -> int:
        dropped = 0
        look_ahead = wanted
        while dropped < wanted:
            victims = self._policy.victims(look_ahead).tolist()
            before = dropped
            for block in victims:
                if dropped >= wanted:
                    break
                dropped += self._evict(block)
            if dropped == before:
                if len(victims) < look_ahead:
                    break  # every cached block was offered and none could go
                look_ahead *= 2  # a policy that offers inner pages first: look further for leaves
        return dropped

    def _evict(self, block: int) -> int:
        """Frees one cached block, and what becomes unreachable with it; 0 if it has to wait for its children."""
        if not self._pool.indexed[block]:
            return 0  # went together with another victim
        node = self._index.node_of_block(block)
        if self._has_full_group and self._has_window[self._index.group_of_block(block)]:
            doomed = [block]  # later pages of a windowed group don't need this one
        elif not self._has_full_group:
            doomed = [block]
        elif self._index.is_leaf(node):
            doomed = self._index.blocks_of(node)
        else:
            return 0
        ids = np.asarray(doomed, np.int32)
        self._policy.remove(ids[self._pool.is_cached(ids)])
        for each in doomed:
            self._index.detach(each)
        return len(self._pool.unpublish(ids))
