"""What a frame says beside its blocks: figures, ready for JSON, from one look at an engine. Knows no engine.

Everything counts since the start but what says otherwise; shares are 0 to 1. Nothing here holds text or tokens of a
prompt or an answer, and no tenant is named.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvpager.memory.layout import KVLayout
from kvpager.metrics.activity import Deed
from kvpager.metrics.block_view import BlockView
from kvpager.metrics.contiguous_view import Held, Pool, compare
from kvpager.metrics.frames import STATES
from kvpager.metrics.rates import Rate
from kvpager.metrics.snapshot import Snapshot
from kvpager.types import TierKind


@dataclass(frozen=True, slots=True)
class Owner:
    """A branch as it stands. ``owner``: its number in the block map. Pages are those of all layer groups; ``age``:
    seconds since its request came."""

    owner: int
    request: str
    session: str
    choice: int
    state: str
    prompt_tokens: int
    tokens: int
    generated: int
    max_tokens: int
    pages: int
    shared_pages: int
    pages_below: int
    prefix_tokens: int
    preemptions: int
    is_slow: bool
    attention: str
    age: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What was read between two steps, at ``time`` (unix seconds). ``left_out``: branches that are not in ``owners``;
    ``held``: of each running sequence; ``context``: the longest sequence that may be asked for, tokens."""

    snapshot: Snapshot
    time: float
    blocks: BlockView
    owners: tuple[Owner, ...]
    left_out: int
    held: tuple[Held, ...]
    layout: KVLayout
    context: int


def figures_of(look: Look, rate: Rate, deeds: Sequence[Deed]) -> dict[str, Any]:
    engine, cache = look.snapshot.engine, look.snapshot.cache
    return {
        "pool": _pool(look),
        "states": STATES,
        "owners": [owner.as_dict() for owner in look.owners],
        "owners_left_out": look.left_out,
        "waiting": engine.waiting,
        "running": engine.running,
        "loading": engine.loading,
        "finished": engine.finished_requests,
        "generated_tokens": engine.generated_tokens,
        "tiers": [_device(look), *_lower(look.snapshot)],
        "prefix": {
            "prompt_tokens": cache.prefix.prompt_tokens,
            "hit_tokens": cache.prefix.hit_tokens,
            "by_tier": {kind.name.lower(): count for kind, count in cache.prefix.by_tier.items() if kind},
        },
        "faults": {
            kind.name.lower(): {"pages": count.pages, "seconds": round(count.seconds, 6)}
            for kind, count in cache.faults.items()
        },
        "preemptions": engine.preemptions,
        "evictions": _evictions(look.snapshot),
        "rates": {name: round(value, 4) for name, value in asdict(rate).items()},
        "contiguous": asdict(compare(_pool_of(look), look.held, look.context)),
        "activity": [_activity(deed) for deed in deeds],
    }


def _pool(look: Look) -> dict[str, int]:
    cache = look.snapshot.cache
    blocks = cache.blocks
    return {
        "blocks": blocks.total,
        "page_size": look.layout.page_size,
        "block_bytes": cache.block_bytes,
        "free": blocks.free,
        "used": blocks.used,
        "cached": blocks.cached,
        "moving": blocks.moving,
        "shared": cache.shared_blocks,
    }


def _pool_of(look: Look) -> Pool:
    cache = look.snapshot.cache
    return Pool(
        blocks=cache.blocks.total,
        block_bytes=cache.block_bytes,
        page_size=look.layout.page_size,
        token_bytes=look.layout.bytes_per_token,
        used_blocks=cache.blocks.used,
        empty_slots=cache.waste_tokens,
    )


def _evictions(snapshot: Snapshot) -> int:
    """Pages that the device dropped to make room."""
    return snapshot.cache.reclaim.background + snapshot.cache.reclaim.direct


def _device(look: Look) -> dict[str, Any]:
    cache = look.snapshot.cache
    blocks = cache.blocks
    held = blocks.total - blocks.free
    return {
        "name": "device",
        "kind": "device",
        "capacity_bytes": blocks.total * cache.block_bytes,
        "used_bytes": held * cache.block_bytes,
        "pages": held,
        "evicted": _evictions(look.snapshot),
        "hit_tokens": cache.prefix.by_tier.get(TierKind.DEVICE, 0),
        "state": "ok",
    }


def _lower(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The tiers below. A capacity of 0 means that the tier doesn't say how much it takes."""
    return [
        {
            "name": tier.name,
            "kind": tier.usage.kind.name.lower(),
            "capacity_bytes": tier.usage.capacity_bytes,
            "used_bytes": tier.usage.used_bytes,
            "pages": tier.pages,
            "evicted": tier.evicted,
            "hit_tokens": snapshot.cache.prefix.by_tier.get(tier.usage.kind, 0),
            "state": tier.state,
        }
        for tier in snapshot.cache.tiers
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
