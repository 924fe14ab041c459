"""What a cache shows of itself: plain numbers, read at one moment, that add up."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.fault import FaultCount
from kvpager.cache.paging_statistics import PagingStatistics
from kvpager.cache.reclaim import ReclaimCounts
from kvpager.cache.retention_terms import RetentionStatistics
from kvpager.cache.runs import RunStatistics
from kvpager.cache.tier_lines import tier_lines
from kvpager.memory.block_pool import PoolCounts
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics
from kvpager.types import FaultKind, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """``prompt_tokens`` were looked up in ``lookups``; ``hit_tokens`` of them were found, ``by_tier`` says where they
    had been. Since the cache opened."""

    lookups: int
    prompt_tokens: int
    hit_tokens: int
    by_tier: dict[TierKind, int]

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """``blocks`` by state; ``tokens`` live in ``sequences``; ``waste_tokens`` are slots of mapped blocks that no
    token fills (internal fragmentation), each block counted once; ``shared_blocks`` are mapped by more than one table.
    ``allocation_failures``: calls that could not get the blocks they needed.
    """

    blocks: PoolCounts
    faults: dict[FaultKind, FaultCount]
    prefix: PrefixCounts
    reclaim: ReclaimCounts
    sequences: int
    tokens: int
    computed_tokens: int
    waste_tokens: int
    shared_blocks: int
    published_blocks: int
    deduplicated_blocks: int
    table_bytes: int
    block_bytes: int
    tiers: tuple[TierStatistics, ...] = ()  # below the device, the nearest first
    migration: MigrationStatistics | None = None
    retention: RetentionStatistics | None = None  # None where nothing was ever retained
    paging: PagingStatistics | None = None  # None where no page of a running sequence was ever away from the device
    allocation_failures: int = 0
    runs: RunStatistics | None = None  # None where allocation is paged

    def __str__(self) -> str:
        b = self.blocks
        faults = "  ".join(f"{kind.name.lower()} {count.pages}" for kind, count in self.faults.items())
        return (
            f"blocks   {b.used} used + {b.cached} cached + {b.moving} moving + {b.free} free = {b.total}"
            f"  ({self.block_bytes:,} bytes each)\n"
            f"live     {self.sequences} sequences, {self.tokens} tokens, {self.shared_blocks} shared blocks, "
            f"{self.waste_tokens} empty slots\n"
            f"prefix   {self.prefix.hit_tokens} of {self.prefix.prompt_tokens} prompt tokens found "
            f"({self.prefix.hit_rate:.0%}), {self.published_blocks} blocks findable\n"
            f"faults   {faults}\n"
            f"reclaim  {self.reclaim.background} background, {self.reclaim.direct} direct"
            + ("" if self.runs is None else f"\n{self.runs}")
            + ("" if self.retention is None else f"\n{self.retention}")
            + ("" if self.paging is None else f"\n{self.paging}")
            + self._tiers()
        )

    def _tiers(self) -> str:
        if self.migration is None:
            return ""
        return "".join(f"\n{line}" for line in tier_lines(self.tiers, self.prefix.by_tier, self.migration))


def read_statistics(cache: "PagedCache") -> CacheStatistics:
    """What ``PagedCache.statistics`` returns."""
    live = np.fromiter(cache.sequences, np.int64, len(cache.sequences))
    lower = cache.lower
    return CacheStatistics(
        blocks=cache.pool.counts(),
        faults=cache._faults.counts(),
        prefix=PrefixCounts(cache._lookups, cache._prompt_tokens, cache._hit_tokens, dict(cache._hits_by_tier)),
        reclaim=cache._reclaimer.counts(),
        sequences=len(live),
        tokens=int(cache.rows.committed[live].sum()),
        computed_tokens=cache._computed_tokens,
        waste_tokens=_waste(cache, live),
        shared_blocks=int((cache.pool.refcount > 1).sum()),
        published_blocks=cache.index.num_entries,
        deduplicated_blocks=cache._deduplicated,
        table_bytes=sum(table.nbytes for seq in cache.sequences.values() for table in seq.tables),
        block_bytes=cache.layout.block_bytes,
        tiers=() if lower is None else tuple(tier.statistics() for tier in lower.migration.tiers),
        migration=None if lower is None else lower.migration.statistics(),
        retention=cache.retention.statistics(),
        paging=cache.paging.statistics(),
        allocation_failures=cache.allocation_failures,
        runs=None if cache.runs is None else cache.runs.statistics(),
    )


def _waste(cache: "PagedCache", live: np.ndarray) -> int:
    """Slots of begun pages that no token fills, each block counted once. A findable page is full, and so is one that a
    sequence has gone past, though another that was forked from it and cut ends inside."""
    pool, page_size = cache.pool, cache.layout.page_size
    filled = cache.rows.reserved[live] % page_size
    tails = cache.rows.tail[:, live[filled > 0]]
    blocks, place, times = np.unique(tails.ravel(), return_inverse=True, return_counts=True)
    fill = np.zeros(len(blocks), np.int64)
    np.maximum.at(fill, place, np.tile(filled[filled > 0], len(tails)))
    is_begun = (times == pool.refcount[blocks]) & ~pool.indexed[blocks]
    return int((page_size - fill[is_begun]).sum())
