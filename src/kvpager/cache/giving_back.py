"""Blocks that a sequence has no use for any more, and content that nobody is to find any more.

A block goes to the pool; whoever keeps the order of what may be evicted is told of findable ones.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.sequence import Sequence
from kvpager.eviction.policy import NO_USE

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def give_back(cache: "PagedCache", seq: Sequence, blocks: np.ndarray) -> None:
    """One mapping less for each block; blocks that an open step may touch stay MOVING until it has ended."""
    if len(blocks) == 0:
        return
    if cache.rows.open_steps[seq.row]:
        for step in cache.open_steps:
            if seq in step.sequences:
                cache.pool.pin(blocks)
                step.held.append(blocks)
    released = cache.pool.release(blocks)
    if len(released.unmapped):
        use = seq.use() if cache.evictable.asks_for_use else NO_USE
        cache.evictable.released(released.unmapped, released.cached, use)


def clear_prefix(cache: "PagedCache") -> int:
    """Forgets all findable content of the device; returns the blocks freed."""
    cache.epoch += 1
    published = cache.index.all_blocks()
    cache.evictable.left(published)
    for seq in cache.sequences.values():
        cache.rows.publish_until[seq.row] = cache.rows.published[seq.row] = 0
    cache.index.detach_all()
    for seq in cache.sequences.values():
        if seq._root is not None:
            cache.index.leave_root(seq._root)
        seq._root = seq._node = None
    return len(cache.pool.unpublish(published))
