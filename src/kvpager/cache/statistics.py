"""What a cache shows of itself: plain numbers, read at one moment, that add up."""

from dataclasses import dataclass

from kvpager.cache.fault import FaultCount
from kvpager.cache.reclaim import ReclaimCounts
from kvpager.cache.retention_terms import RetentionStatistics
from kvpager.cache.tier_lines import tier_lines
from kvpager.memory.block_pool import PoolCounts
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics
from kvpager.types import FaultKind, TierKind


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
            + ("" if self.retention is None else f"\n{self.retention}")
            + self._tiers()
        )

    def _tiers(self) -> str:
        if self.migration is None:
            return ""
        return "".join(f"\n{line}" for line in tier_lines(self.tiers, self.prefix.by_tier, self.migration))
