"""Snapshots made by hand: all zeros but for what a test gives."""

from kvpager.cache.fault import FaultCount
from kvpager.cache.reclaim import ReclaimCounts
from kvpager.cache.statistics import CacheStatistics, PrefixCounts
from kvpager.engine.load_or_compute import LoadCounts
from kvpager.engine.preemption import PreemptionMode
from kvpager.engine.statistics import EngineStatistics, Resumptions
from kvpager.memory.block_pool import PoolCounts
from kvpager.metrics.snapshot import Setting, Snapshot
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics, TierUsage, TransferCounts
from kvpager.types import FaultKind, TierKind

SETTING = Setting(policy="lru", page_size=16, num_groups=1, max_waiting=100)


def engine_statistics(*, preemptions: int = 0, **given: object) -> EngineStatistics:
    """``preemptions``: of several modes."""
    zeros: dict[str, object] = dict.fromkeys(
        (
            *("running", "waiting", "loading", "finished_requests", "prompt_tokens", "prefix_tokens"),
            *("generated_tokens", "steps", "model_seconds", "bookkeeping_seconds", "sampling_seconds"),
        ),
        0,
    )
    by_mode = {PreemptionMode.RECOMPUTE: preemptions // 3, PreemptionMode.SWAP: preemptions - preemptions // 3}
    zeros |= {"prefix_by_tier": {}, "preemptions_by_mode": by_mode}
    zeros |= {"resumptions": Resumptions({}, {}), "loads": LoadCounts(), "loads_explained": ""}
    return EngineStatistics(**{**zeros, **given})  # type: ignore[arg-type]


def cache_statistics(**given: object) -> CacheStatistics:
    zeros: dict[str, object] = dict.fromkeys(
        (
            *("sequences", "tokens", "computed_tokens", "waste_tokens", "shared_blocks", "published_blocks"),
            *("deduplicated_blocks", "table_bytes"),
        ),
        0,
    )
    zeros |= {
        "blocks": pool(),
        "faults": {kind: FaultCount(0, 0.0) for kind in FaultKind},
        "prefix": PrefixCounts(0, 0, 0, {}),
        "reclaim": ReclaimCounts(0, 0),
        "block_bytes": 1024,
    }
    return CacheStatistics(**{**zeros, **given})  # type: ignore[arg-type]


def pool(total: int = 100, used: int = 0, cached: int = 0, moving: int = 0) -> PoolCounts:
    return PoolCounts(total, total - used - cached - moving, used, cached, moving, moving)


def tier(kind: TierKind = TierKind.HOST, state: str = "ok", **given: object) -> TierStatistics:
    usage = TierUsage(kind, capacity_bytes=10_000, used_bytes=1000, blocks=10, free=9, used=0, cached=1, moving=0)
    zeros: dict[str, object] = {"stored": TransferCounts(), "loaded": TransferCounts()}
    return TierStatistics(kind.name.lower(), state, usage, 1, **{**zeros, **given})  # type: ignore[arg-type]


def migration(**given: object) -> MigrationStatistics:
    zeros: dict[str, object] = dict.fromkeys(
        ("moving_bytes", "queued_jobs", "refused", "lost", "late", "io_wait_seconds", "idle_seconds"), 0
    )
    return MigrationStatistics(**{"precision": "exact", **zeros, **given})  # type: ignore[arg-type]


def snapshot(at: float = 0.0, *, engine: dict[str, object] | None = None, **cache: object) -> Snapshot:
    """``engine`` and all others: fields of the two statistics."""
    return Snapshot(at, engine_statistics(**(engine or {})), cache_statistics(**cache), SETTING)
