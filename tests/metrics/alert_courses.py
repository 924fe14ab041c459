"""Courses of events in which alerts fire or must not: the same for Prometheus' rules and for the product's own.

Each is a snapshot for every moment, in seconds; ``expected`` says when the rule fires, and with which value.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvpager.cache.fault import FaultCount
from kvpager.cache.reclaim import ReclaimCounts
from kvpager.cache.statistics import PrefixCounts
from kvpager.metrics.snapshot import Snapshot
from kvpager.tiers.tier import TransferCounts
from kvpager.types import FaultKind, TierKind
from tests.metrics.snapshots import migration, pool, snapshot, tier

_HOUR = 3600.0
_FALL = 3 * _HOUR  # when the hit rate falls


@dataclass(frozen=True, slots=True)
class Fires:
    """``by_prometheus``: its value where that is written in another way."""

    value: str
    tier: str = ""
    by_prometheus: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """``expected``: by moment; None: it does not fire. ``step``: seconds between two snapshots."""

    name: str
    rule: str
    at: Callable[[float], Snapshot]
    expected: dict[float, Fires | None]
    step: float = 15.0


def _used(count: Callable[[float], int]) -> Callable[[float], Snapshot]:
    return lambda t: snapshot(t, blocks=pool(100, used=count(t) - 2, moving=2))


def _major(per_second: float) -> Callable[[float], Snapshot]:
    def at(t: float) -> Snapshot:
        faults = {kind: FaultCount(0, 0.0) for kind in FaultKind}
        faults[FaultKind.DEMAND] = FaultCount(int(50 * t), 0.0)  # not what it is about
        faults[FaultKind.MAJOR] = FaultCount(int(per_second * t), 0.0)
        return snapshot(t, faults=faults)

    return at


def _reclaimed(direct: float, background: float) -> Callable[[float], Snapshot]:
    return lambda t: snapshot(t, reclaim=ReclaimCounts(int(background * t), int(direct * t), quota=int(9 * t)))


def _copies(stored: float, refused: float) -> Callable[[float], Snapshot]:
    def at(t: float) -> Snapshot:
        host = tier(stored=TransferCounts(pages=int(stored * t)), loaded=TransferCounts(pages=int(9 * t)))
        return snapshot(t, tiers=(host,), migration=migration(refused=int(refused * t), late=int(9 * t)))

    return at


def _disk(is_failing: Callable[[float], bool]) -> Callable[[float], Snapshot]:
    def at(t: float) -> Snapshot:
        state = "failing: EIO" if is_failing(t) else "ok"
        return snapshot(t, tiers=(tier(), tier(TierKind.DISK, state=state)), migration=migration())

    return at


def _hit_rate(tokens_per_second: int, later: float) -> Callable[[float], Snapshot]:
    def at(t: float) -> Snapshot:
        found = tokens_per_second * (0.8 * min(t, _FALL) + later * max(0.0, t - _FALL))
        counts = PrefixCounts(int(t), int(tokens_per_second * t), round(found), {TierKind.DEVICE: round(found)})
        return snapshot(t, prefix=counts)

    return at


def _queue(waiting: Callable[[float], int], running: int) -> Callable[[float], Snapshot]:
    return lambda t: snapshot(t, engine={"waiting": waiting(t), "running": running})


def _stalled(first: float, last: float) -> Callable[[float], Snapshot]:
    return lambda t: snapshot(first if first <= t < last else t)


COURSES = (
    Course("memory nearly full", "KVPagerMemoryNearlyFull", _used(lambda t: 97),
           {240: None, 330: Fires("97% of blocks in use")}),
    Course("memory well filled", "KVPagerMemoryNearlyFull", _used(lambda t: 95), {600: None}),
    Course("memory full for a moment", "KVPagerMemoryNearlyFull", _used(lambda t: 97 if t % 240 else 50), {1200: None}),
    Course("memory full for a while", "KVPagerMemoryNearlyFull", _used(lambda t: 97 if t < 600 else 50),
           {630: Fires("97% of blocks in use"), 780: None}),
    Course("thrashing", "KVPagerFaultRateHigh", _major(1.0), {240: None, 1200: Fires("0.60 pools a minute")}),
    Course("some major faults", "KVPagerFaultRateHigh", _major(0.8), {1200: None}),
    Course("reclaim without end", "KVPagerReclaimPressure", _reclaimed(1.0, 1.0),
           {240: None, 1200: Fires("1.20 pools a minute")}),
    Course("usual reclaim", "KVPagerReclaimPressure", _reclaimed(0.8, 0.8), {1200: None}),
    Course("preemptions", "KVPagerPreemptions", lambda t: snapshot(t, engine={"preemptions": int(t // 5)}),
           {240: None, 1200: Fires("12 a minute")}),
    Course("a few preemptions", "KVPagerPreemptions", lambda t: snapshot(t, engine={"preemptions": int(t // 15)}),
           {1200: None}),
    Course("copies refused", "KVPagerMigrationBacklog", _copies(1.0, 1.0),
           {240: None, 1200: Fires("50% of copies refused")}),
    Course("few copies refused", "KVPagerMigrationBacklog", _copies(4.0, 1.0), {1200: None}),
    Course("nothing moves", "KVPagerMigrationBacklog", _copies(0.0, 0.0), {1200: None}),
    Course("a disk that fails", "KVPagerTierFailing", _disk(lambda t: t >= 60),
           {90: None, 180: Fires("failing", "disk")}),
    Course("a disk that fails for a moment", "KVPagerTierFailing", _disk(lambda t: 60 <= t < 105),
           {120: None, 600: None}),
    Course("hit rate fallen", "KVPagerHitRateFallen", _hit_rate(30, 0.2),
           {_FALL: None, _FALL + 480: None,
            _FALL + 1200: Fires("74% below the usual", by_prometheus="73.97% below the usual")}, step=120.0),
    Course("hit rate a little lower", "KVPagerHitRateFallen", _hit_rate(30, 0.5), {_FALL + 1800: None}, step=120.0),
    Course("hit rate of little traffic", "KVPagerHitRateFallen", _hit_rate(10, 0.2), {_FALL + 1800: None}, step=120.0),
    Course("queue growing", "KVPagerQueueGrowing", _queue(lambda t: int(t // 15), 2),
           {240: None, 600: Fires("20.0 wait for each that runs")}),
    Course("queue getting shorter", "KVPagerQueueGrowing", _queue(lambda t: int(200 - t // 15), 2), {900: None}),
    Course("short queue", "KVPagerQueueGrowing", _queue(lambda t: 6, 2), {900: None}),
    Course("engine stalled", "KVPagerEngineStalled", _stalled(60, 300),
           {90: None, 180: Fires("120 s without a step"), 330: None}),
    Course("long steps", "KVPagerEngineStalled", lambda t: snapshot(t - t % 30), {900: None}),
)  # fmt: skip
