"""What the memory did between two looks: faults, evictions, moves between tiers, preemptions. Differences of counters.

Knows when two looks were, not when something happened between them, and no page by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvpager.metrics.rates import GAP_SECONDS
from kvpager.metrics.snapshot import Snapshot
from kvpager.types import FaultKind, TierKind

_FAULTS = {
    FaultKind.DEMAND: "demand_fault",
    FaultKind.MINOR: "minor_fault",
    FaultKind.MAJOR: "major_fault",
    FaultKind.COPY_ON_WRITE: "copy_on_write",
}
KINDS = (*_FAULTS.values(), "eviction", "demote", "promote", "preemption")


@dataclass(frozen=True, slots=True)
class Deed:
    """``pages`` of one ``kind``, between ``begin`` and ``end`` (unix seconds); preemptions count branches instead.

    ``tier``: the name of the one that pages came from (major faults, promotions, evictions) or went to. ``seconds``:
    that the work took, summed up over workers; 0 where nobody measures it.
    """

    kind: str
    tier: str
    pages: int
    seconds: float
    begin: float
    end: float


class Activity:
    """Remembers the last look."""

    def __init__(self) -> None:
        self._last: tuple[Snapshot, float] | None = None

    def since_last(self, now: Snapshot, time: float) -> list[Deed]:
        """``time``: unix seconds of ``now``. Nothing at the first look."""
        last, self._last = self._last, (now, time)
        if last is None or now.at - last[0].at > GAP_SECONDS:  # nobody was looking
            return []
        before, begin = last
        found = (*_faults(before, now), *_device(before, now), *_tiers(before, now))
        return [Deed(*each, begin, time) for each in found if each.pages > 0]


class _Found(NamedTuple):
    kind: str
    tier: str
    pages: int
    seconds: float = 0.0


def _faults(before: Snapshot, now: Snapshot) -> Iterator[_Found]:
    for kind, count in now.cache.faults.items():
        was = before.cache.faults[kind]
        tier = _loaded_from(before, now) if kind is FaultKind.MAJOR else "device"
        yield _Found(_FAULTS[kind], tier, count.pages - was.pages, count.seconds - was.seconds)


def _loaded_from(before: Snapshot, now: Snapshot) -> str:
    """The slowest tier that pages were read from; the first one where reads are not counted, as of memory in place."""
    was = {tier.name: tier.loaded.pages for tier in before.cache.tiers}
    read = [tier.name for tier in now.cache.tiers if tier.loaded.pages > was.get(tier.name, 0)]
    return read[-1] if read else next((tier.name for tier in now.cache.tiers), "")


def _device(before: Snapshot, now: Snapshot) -> Iterator[_Found]:
    reclaimed, was = now.cache.reclaim, before.cache.reclaim
    yield _Found("eviction", "device", reclaimed.background + reclaimed.direct - was.background - was.direct)
    yield _Found("preemption", "device", now.engine.preemptions - before.engine.preemptions)


def _tiers(before: Snapshot, now: Snapshot) -> Iterator[_Found]:
    was = {tier.name: tier for tier in before.cache.tiers}
    for tier in now.cache.tiers:
        if tier.name not in was:
            continue
        kind, earlier = tier.usage.kind, was[tier.name]
        stored, loaded = tier.stored.seconds - earlier.stored.seconds, tier.loaded.seconds - earlier.loaded.seconds
        yield _Found("demote", tier.name, _moved(before, now, kind, "demoted"), stored)
        yield _Found("promote", tier.name, _moved(before, now, kind, "promoted"), loaded)
        yield _Found("eviction", tier.name, tier.evicted - earlier.evicted)


def _moved(before: Snapshot, now: Snapshot, kind: TierKind, way: Literal["demoted", "promoted"]) -> int:
    if before.cache.migration is None or now.cache.migration is None:
        return 0
    counts: int = getattr(now.cache.migration, way).get(kind, 0) - getattr(before.cache.migration, way).get(kind, 0)
    return counts
