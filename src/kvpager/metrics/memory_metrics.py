"""The metrics of the memory: pool, prefix cache, faults, eviction, tiers, pages below the device. One table.

Every reading is of one snapshot, so what belongs together adds up: blocks by state to the blocks of the tier, hits by
tier to the tokens found.
"""

from collections.abc import Callable, Iterator

from kvpager.metrics.metric import Group, Metric, Reading, Series, by_tier, counter, gauge, tier_name
from kvpager.metrics.snapshot import Snapshot
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics, TransferCounts
from kvpager.types import TierKind

_DEVICE = tier_name(TierKind.DEVICE)
_MAX_REASONS = 16  # of a tier's failures that have a series of their own


def _tiers(snapshot: Snapshot) -> tuple[TierKind, ...]:
    return (TierKind.DEVICE, *(tier.usage.kind for tier in snapshot.cache.tiers))


def _lower(read: Callable[[TierStatistics], float]) -> Reading:
    """A value for each tier below the device."""
    return lambda s: {(tier_name(tier.usage.kind),): read(tier) for tier in s.cache.tiers}


def _moved(read: Callable[[TransferCounts], float]) -> Reading:
    """A value for each tier below the device and direction."""

    def values(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str], float]]:
        for tier in snapshot.cache.tiers:
            for kind, counts in (("store", tier.stored), ("load", tier.loaded)):
                yield (tier_name(tier.usage.kind), kind), read(counts)

    return lambda s: dict(values(s))


def _migration(read: Callable[[MigrationStatistics], Series | float]) -> Reading:
    """Of what moves between tiers; no series where there are none below the device."""
    return lambda s: {} if s.cache.migration is None else read(s.cache.migration)


def _blocks(snapshot: Snapshot) -> Series:
    usages = [(_DEVICE, snapshot.cache.blocks), *((tier_name(t.usage.kind), t.usage) for t in snapshot.cache.tiers)]
    return {
        (tier, state): getattr(usage, state) for tier, usage in usages for state in ("free", "used", "cached", "moving")
    }


def _capacity(snapshot: Snapshot) -> Series:
    cache = snapshot.cache
    found: dict[tuple[str, ...], float] = {(_DEVICE,): cache.blocks.total}
    found.update({(tier_name(tier.usage.kind),): tier.usage.blocks for tier in cache.tiers})
    return found


def _bytes(device: Callable[[Snapshot], int], lower: Callable[[TierStatistics], int]) -> Reading:
    def read(snapshot: Snapshot) -> Series:
        found: dict[tuple[str, ...], float] = {(_DEVICE,): device(snapshot) * snapshot.cache.block_bytes}
        found.update({(tier_name(tier.usage.kind),): lower(tier) for tier in snapshot.cache.tiers})
        return found

    return read


def _evictions(snapshot: Snapshot) -> Series:
    policy, reclaim = snapshot.setting.policy, snapshot.cache.reclaim
    found: dict[tuple[str, ...], float] = {
        (_DEVICE, policy, reason): getattr(reclaim, reason) for reason in ("background", "direct", "quota", "expired")
    }
    found.update({(tier_name(tier.usage.kind), policy, "direct"): tier.evicted for tier in snapshot.cache.tiers})
    return found


def _failures(snapshot: Snapshot) -> Series:
    """By the first word of what went wrong, as the tier counts it; whatever comes late, under ``other``."""
    found: dict[tuple[str, ...], float] = {}
    for tier in snapshot.cache.tiers:
        for place, (reason, count) in enumerate(tier.failures.items()):
            is_plain = place < _MAX_REASONS and reason.replace(" ", "").replace("_", "").isalpha()
            key = (tier_name(tier.usage.kind), reason if is_plain else "other")
            found[key] = found.get(key, 0) + count
    return found


_POOL = (
    gauge(
        "blocks",
        Group.POOL,
        "Blocks by tier and state: held by page tables (used), findable and in nobody's use (cached), being copied or "
        "held by an open step (moving), free. They add up to kvpager_capacity_blocks.",
        _blocks,
        *("tier", "state"),
    ),
    gauge("capacity_blocks", Group.POOL, "Blocks that a tier has, in whatever state.", _capacity, "tier"),
    gauge("block_bytes", Group.POOL, "Bytes of a block of the device.", lambda s: s.cache.block_bytes),
    gauge("page_size_tokens", Group.POOL, "Tokens of a page.", lambda s: s.setting.page_size),
    gauge("pinned_blocks", Group.POOL, "Blocks of the device that transfers and open steps hold.",
          lambda s: s.cache.blocks.pinned),
    gauge("shared_blocks", Group.POOL, "Blocks of the device that more than one page table maps.",
          lambda s: s.cache.shared_blocks),
    gauge("waste_slots", Group.POOL, "Token slots of held blocks that no token fills (internal fragmentation).",
          lambda s: s.cache.waste_tokens),
    gauge("waste_bytes", Group.POOL, "Bytes of those slots.",
          lambda s: s.cache.waste_tokens * s.cache.block_bytes / s.setting.page_size),
    gauge("sequences", Group.POOL, "Sequences that hold pages.", lambda s: s.cache.sequences),
    gauge("live_tokens", Group.POOL, "Tokens of those sequences, each with its own count.", lambda s: s.cache.tokens),
    gauge("page_table_bytes", Group.POOL, "Bytes of their page tables.", lambda s: s.cache.table_bytes),
    counter("allocation_failures", Group.POOL, "Calls that could not get the blocks they needed.",
            lambda s: s.cache.allocation_failures),
)  # fmt: skip

_PREFIX = (
    counter("prefix_lookups", Group.PREFIX, "Prompts looked up, those of resumed requests too.",
            lambda s: s.cache.prefix.lookups),
    counter("prefix_lookup_tokens", Group.PREFIX, "Tokens of those prompts.", lambda s: s.cache.prefix.prompt_tokens),
    counter("prefix_hit_tokens", Group.PREFIX, "Of those tokens, the ones that were found, by where they had been.",
            lambda s: by_tier(s.cache.prefix.by_tier, _tiers(s)), "tier"),
    gauge("findable_blocks", Group.PREFIX, "Blocks of the device whose content can be found, in use or not.",
          lambda s: s.cache.published_blocks),
    counter("deduplicated_blocks", Group.PREFIX, "Blocks given back because another had the same content.",
            lambda s: s.cache.deduplicated_blocks),
    gauge("retained_pages", Group.PREFIX, "Pages that a retention names.",
          lambda s: 0 if s.cache.retention is None else s.cache.retention.pages),
    gauge("retention_pinned_pages", Group.PREFIX, "Pages that a retention pins.",
          lambda s: 0 if s.cache.retention is None else s.cache.retention.pinned),
)  # fmt: skip

_FAULTS = (
    counter(
        "faults",
        Group.FAULTS,
        "Page faults, in pages, by kind: first touch (demand), content that was on the device (minor), content that "
        "came up from a lower tier (major), writes to shared pages (copy_on_write).",
        lambda s: {(kind.name.lower(),): count.pages for kind, count in s.cache.faults.items()},
        "kind",
    ),
    counter("fault_seconds", Group.FAULTS, "Seconds that handling those faults took.",
            lambda s: {(kind.name.lower(),): count.seconds for kind, count in s.cache.faults.items()}, "kind"),
)  # fmt: skip

_EVICTION = (
    counter(
        "evictions",
        Group.EVICTION,
        "Cached pages dropped, by tier, policy and reason: free blocks below the watermark (background), a call that "
        "lacked some (direct), a tenant beyond its quota (quota), time to live run out (expired).",
        _evictions,
        *("tier", "policy", "reason"),
    ),
)

_TIERS = (
    gauge("tier_capacity_bytes", Group.TIERS, "Bytes that a tier may hold; 0 for a remote one, which does not say.",
          _bytes(lambda s: s.cache.blocks.total, lambda t: t.usage.capacity_bytes), "tier"),
    gauge("tier_used_bytes", Group.TIERS, "Bytes that a tier holds.",
          _bytes(lambda s: s.cache.blocks.total - s.cache.blocks.free, lambda t: t.usage.used_bytes), "tier"),
    gauge("tier_pages", Group.TIERS, "Pages that can be found in a tier below the device.",
          _lower(lambda t: t.pages), "tier"),
    gauge("tier_ok", Group.TIERS, "1 where a tier below the device works, 0 where it fails, is full or not writable.",
          _lower(lambda t: t.state == "ok"), "tier"),
    counter("tier_failures", Group.TIERS, "What went wrong in a tier.", _failures, "tier", "reason"),
    counter("tier_quarantined_pages", Group.TIERS, "Pages whose bytes were wrong: they are misses for ever.",
            _lower(lambda t: t.quarantined), "tier"),
    counter(
        "tier_refused_pages",
        Group.TIERS,
        "Pages that a tier did not take: it had no room or takes none (full), it holds better ones (unwanted).",
        lambda s: {
            (tier_name(t.usage.kind), reason): count
            for t in s.cache.tiers
            for reason, count in (("full", t.refused), ("unwanted", t.declined))
        },
        *("tier", "reason"),
    ),
    counter("migrations", Group.TIERS, "Pages moved into a tier (store) or out of it (load).",
            _moved(lambda c: c.pages), "tier", "kind"),
    counter("migration_bytes", Group.TIERS, "Bytes of those pages.", _moved(lambda c: c.bytes), "tier", "kind"),
    counter("migration_seconds", Group.TIERS, "Seconds that workers took to move them, summed up.",
            _moved(lambda c: c.seconds), "tier", "kind"),
    counter("migration_failures", Group.TIERS, "Pages that could not be moved.",
            _moved(lambda c: c.failed), "tier", "kind"),
    gauge("migration_moving_bytes", Group.TIERS, "Bytes under way between tiers.",
          _migration(lambda m: m.moving_bytes)),
    gauge("migration_jobs", Group.TIERS, "Jobs of transfers under way or in a queue.",
          _migration(lambda m: m.queued_jobs)),
    counter(
        "migration_misses",
        Group.TIERS,
        "Copies down that did not happen: queues or tiers were full (refused), the page was lost with its block "
        "(lost), no tier held one worth less (unwanted); and loads that missed their deadline (late).",
        _migration(lambda m: {
            ("refused",): m.refused,
            ("lost",): m.lost,
            ("unwanted",): m.not_worth_keeping,
            ("late",): m.late,
        }),
        "reason",
    ),
    counter("migration_wait_seconds", Group.TIERS,
            "Seconds that the engine waited for transfers, while it had other work (busy) or none (idle).",
            _migration(lambda m: {("busy",): m.io_wait_seconds, ("idle",): m.idle_seconds}), "state"),
)  # fmt: skip

_BELOW = (
    gauge("pages_in_use_below", Group.BELOW, "Pages that running sequences use where they lie, below the device.",
          lambda s: {} if s.cache.paging is None else by_tier(s.cache.paging.below, ()), "tier"),
    counter(
        "paging_pages",
        Group.BELOW,
        "Pages of running sequences that lost their blocks to a tier (out), came up again (back), were given back for "
        "good (dropped) or could not be read (lost).",
        lambda s: {
            (kind,): 0 if s.cache.paging is None else getattr(s.cache.paging, kind)
            for kind in ("out", "back", "dropped", "lost")
        },
        "kind",
    ),
    counter("below_read_pages", Group.BELOW, "Pages that steps read below the device, once for every step.",
            lambda s: s.engine.faults.major),
    counter("below_read_bytes", Group.BELOW, "Bytes of those pages.", lambda s: s.engine.faults.bytes),
    counter("below_stall_seconds", Group.BELOW, "Seconds that steps waited for them.",
            lambda s: s.engine.faults.stalled_seconds),
)  # fmt: skip

MEMORY_METRICS: tuple[Metric, ...] = (*_POOL, *_PREFIX, *_FAULTS, *_EVICTION, *_TIERS, *_BELOW)
