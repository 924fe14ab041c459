"""Growing and shrinking the pool under live sequences. Knows every structure that names a block, and no step."""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import ConfigError, OutOfBlocks
from kvpager.memory.block import BlockState

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_SETTLE_SECONDS = 10.0  # for transfers that hold blocks


def resize_pool(cache: "PagedCache", num_blocks: int) -> None:
    """What ``PagedCache.resize`` promises."""
    pool = cache.pool
    if cache.open_steps:
        raise ConfigError("the pool can't change its size while a step is open")
    if num_blocks < 1:
        raise ConfigError(f"a pool needs at least one block, not {num_blocks}")
    if cache.lower is not None and not cache.lower.settle(_SETTLE_SECONDS):
        raise ConfigError("the pool can't change its size while transfers hang; see the state of its tiers")
    cache.paging.settle()
    counts = pool.counts()
    live = counts.used + counts.moving
    if live > num_blocks:
        raise OutOfBlocks(live, num_blocks, counts.pinned, counts.cached, counts.total)
    if num_blocks < pool.num_blocks:
        excess = pool.num_blocks - num_blocks
        cache._reclaimer.make_free_at_last(excess)
        _move_below(cache, num_blocks)
    pool.resize(num_blocks)
    cache.index.resize(num_blocks)
    cache.evictable.policy.resize(num_blocks)


def _move_below(cache: "PagedCache", num_blocks: int) -> None:
    """Moves what lies in blocks ``num_blocks`` and above into free blocks below, and renames it everywhere."""
    pool = cache.pool
    is_free = np.array([pool.state(block) is BlockState.FREE for block in range(pool.num_blocks)])
    sources = np.flatnonzero(~is_free[num_blocks:]).astype(np.int32) + np.int32(num_blocks)
    targets = np.flatnonzero(is_free[:num_blocks]).astype(np.int32)[: len(sources)]
    if len(sources) == 0:
        return
    indexed = pool.indexed[sources]
    pool.move(sources, targets)
    for at, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        if indexed[at]:
            cache.evictable.moved(source, target)
            cache.index.move(source, target)
    new_ids = np.arange(pool.num_blocks, dtype=np.int32)
    new_ids[sources] = targets
    for seq in cache.sequences.values():
        for table in seq.tables:
            table.renumber(new_ids)
    cache.rows.tail = new_ids[cache.rows.tail]
