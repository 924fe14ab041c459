"""Blocks for new pages: free ones, else what reclaim gives, else what is being copied down and is free in a moment."""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import OutOfBlocks

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_COPY_SECONDS = 5.0  # for copies to lower tiers that hold the last blocks


def take(cache: "PagedCache", needed: int) -> np.ndarray:
    """So many blocks, each mapped once. Raises OutOfBlocks (nothing changed)."""
    cache._check_paged("are computed in steps only, and never copied")
    if not cache._reclaimer.make_free(needed) and not _wait_for_free(cache, needed):
        nobody_else = len(cache.sequences) <= 1  # could make room
        if not nobody_else or not cache._reclaimer.make_free_at_last(needed):
            cache.allocation_failures += 1
            counts, reclaimable = cache.pool.counts(), cache._reclaimer.num_reclaimable
            raise OutOfBlocks(needed, counts.free, counts.pinned, reclaimable, counts.total)
    return cache.pool.allocate(needed)


def _wait_for_free(cache: "PagedCache", needed: int) -> bool:
    """Blocks that are being copied down are free, or reclaimable, in a moment: worth a wait, but not a long one."""
    if cache.lower is None:
        return False
    stop_at = cache.lower.migration.now() + _COPY_SECONDS
    while cache.lower.migration.num_demotions and cache.lower.migration.now() < stop_at:
        cache.lower.wait(0.05)
        if cache._reclaimer.make_free(needed):
            return True
    return False
