"""What a frame says beside its blocks: figures, ready for JSON, from a snapshot of an engine. Knows no branch.

Everything counts since the start but what says otherwise; shares are 0 to 1. Nothing here holds text or tokens of a
prompt or an answer, and no tenant is named.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvpager.cache.statistics import CacheStatistics
from kvpager.memory.layout import KVLayout
from kvpager.metrics.activity import Deed
from kvpager.metrics.frames import STATES
from kvpager.metrics.rates import Rate
from kvpager.metrics.snapshot import Snapshot
from kvpager.types import TierKind


def figures_of(snapshot: Snapshot, layout: KVLayout, rate: Rate, deeds: Sequence[Deed]) -> dict[str, Any]:
    engine, cache = snapshot.engine, snapshot.cache
    return {
        "pool": _pool(cache, layout),
        "states": STATES,
        "waiting": engine.waiting,
        "running": engine.running,
        "loading": engine.loading,
        "finished": engine.finished_requests,
        "generated_tokens": engine.generated_tokens,
        "tiers": [_device(cache), *_lower(cache)],
        "prefix": {
            "prompt_tokens": cache.prefix.prompt_tokens,
            "hit_tokens": cache.prefix.hit_tokens,
            "by_tier": {kind.name.lower(): count for kind, count in cache.prefix.by_tier.items() if kind},
        },
        "faults": {
            kind.name.lower(): {"pages": count.pages, "seconds": round(count.seconds, 6)}
            for kind, count in cache.faults.items()
        },
        "migrations": _migrations(cache),
        "preemptions": engine.preemptions,
        "evictions": _evictions(cache),
        "rates": {name: round(value, 4) for name, value in asdict(rate).items()},
        "activity": [_activity(deed) for deed in deeds],
    }


def _pool(cache: CacheStatistics, layout: KVLayout) -> dict[str, int]:
    blocks = cache.blocks
    return {
        "blocks": blocks.total,
        "page_size": layout.page_size,
        "block_bytes": cache.block_bytes,
        "free": blocks.free,
        "used": blocks.used,
        "cached": blocks.cached,
        "moving": blocks.moving,
        "shared": cache.shared_blocks,
    }


def _evictions(cache: CacheStatistics) -> int:
    """Pages that the device dropped to make room."""
    return cache.reclaim.background + cache.reclaim.direct


def _device(cache: CacheStatistics) -> dict[str, Any]:
    blocks = cache.blocks
    held = blocks.total - blocks.free
    return {
        "name": "device",
        "kind": "device",
        "capacity_bytes": blocks.total * cache.block_bytes,
        "used_bytes": held * cache.block_bytes,
        "pages": held,
        "evicted": _evictions(cache),
        "hit_tokens": cache.prefix.by_tier.get(TierKind.DEVICE, 0),
        "state": "ok",
    }


def _lower(cache: CacheStatistics) -> list[dict[str, Any]]:
    """The tiers below. A capacity of 0 means that the tier doesn't say how much it takes."""
    return [
        {
            "name": tier.name,
            "kind": tier.usage.kind.name.lower(),
            "capacity_bytes": tier.usage.capacity_bytes,
            "used_bytes": tier.usage.used_bytes,
            "pages": tier.pages,
            "evicted": tier.evicted,
            "hit_tokens": cache.prefix.by_tier.get(tier.usage.kind, 0),
            "state": tier.state,
        }
        for tier in cache.tiers
    ]


def _migrations(cache: CacheStatistics) -> list[dict[str, Any]]:
    """Pages that moved, by tier: ``demoted`` into it from above, ``promoted`` from it to the device."""
    moves = cache.migration
    kinds = [] if moves is None else [(tier.name, tier.usage.kind) for tier in cache.tiers]
    return [
        {"tier": name, "demoted": moves.demoted.get(kind, 0), "promoted": moves.promoted.get(kind, 0)}
        for name, kind in kinds
        if moves is not None
    ]


def _activity(deed: Deed) -> dict[str, Any]:
    return {
        "time": round(deed.end, 3),
        "kind": deed.kind,
        "tier": deed.tier,
        "pages": deed.pages,
        "seconds": round(deed.seconds, 6),
        "span": round(deed.end - deed.begin, 3),
    }
