"""What happened between two looks: differences of counters, and nothing where nobody was looking."""

import pytest

from kvpager.cache.fault import FaultCount
from kvpager.cache.reclaim import ReclaimCounts
from kvpager.metrics.activity import KINDS, Activity, Deed
from kvpager.metrics.rates import Rates
from kvpager.metrics.snapshot import Snapshot
from kvpager.tiers.tier import TransferCounts
from kvpager.types import FaultKind, TierKind
from tests.metrics.snapshots import migration, snapshot, tier


def faults(**pages: int) -> dict[FaultKind, FaultCount]:
    return {
        kind: FaultCount(pages.get(kind.name.lower(), 0), pages.get(kind.name.lower(), 0) / 10) for kind in FaultKind
    }


def between(before: Snapshot, now: Snapshot) -> dict[tuple[str, str], tuple[int, float]]:
    activity = Activity()
    assert activity.since_last(before, 100.0) == []
    deeds = activity.since_last(now, 100.5)
    assert all((deed.begin, deed.end) == (100.0, 100.5) for deed in deeds)
    assert {deed.kind for deed in deeds} <= set(KINDS)
    return {(deed.kind, deed.tier): (deed.pages, round(deed.seconds, 6)) for deed in deeds}


def test_nothing_happened() -> None:
    assert between(snapshot(1), snapshot(2)) == {}


def test_faults_preemptions_and_evictions_of_the_device() -> None:
    before = snapshot(1, faults=faults(demand=5, minor=1), reclaim=ReclaimCounts(1, 1))
    now = snapshot(
        2, faults=faults(demand=8, minor=1, copy_on_write=2), reclaim=ReclaimCounts(3, 2), engine={"preemptions": 4}
    )
    assert between(before, now) == {
        ("demand_fault", "device"): (3, 0.3),
        ("copy_on_write", "device"): (2, 0.2),
        ("eviction", "device"): (3, 0.0),
        ("preemption", "device"): (4, 0.0),
    }


def test_moves_between_tiers() -> None:
    before = snapshot(
        1, faults=faults(), tiers=(tier(), tier(TierKind.DISK)), migration=migration(demoted={}, promoted={})
    )
    host = tier(stored=TransferCounts(5, 50, 0.5), evicted=1)
    disk = tier(TierKind.DISK, loaded=TransferCounts(3, 30, 0.25))
    moved = migration(demoted={TierKind.HOST: 5}, promoted={TierKind.DISK: 3})
    now = snapshot(2, faults=faults(major=3), tiers=(host, disk), migration=moved)
    assert between(before, now) == {
        ("major_fault", "disk"): (3, 0.3),
        ("demote", "host"): (5, 0.5),
        ("eviction", "host"): (1, 0.0),
        ("promote", "disk"): (3, 0.25),
    }


def test_major_faults_that_were_read_in_place_come_from_the_nearest_tier() -> None:
    before = snapshot(1, tiers=(tier(),), migration=migration())
    now = snapshot(2, faults=faults(major=2), tiers=(tier(),), migration=migration())
    assert between(before, now) == {("major_fault", "host"): (2, 0.2)}


def test_after_a_pause_only_what_comes_next_is_told() -> None:
    activity = Activity()
    activity.since_last(snapshot(1), 1.0)
    assert activity.since_last(snapshot(100, faults=faults(demand=900)), 100.0) == []
    assert activity.since_last(snapshot(101, faults=faults(demand=901)), 101.0) == [
        Deed("demand_fault", "device", 1, pytest.approx(0.1), 100.0, 101.0)
    ]


# -- rates ---------------------------------------------------------------------------------------------------------


def test_rates_are_means_over_the_last_seconds() -> None:
    rates = Rates()
    first = rates.now(snapshot(10, engine={"generated_tokens": 1000}))
    assert (first.tokens_per_second, first.faults_per_second) == (0, 0)
    for at in range(11, 20):
        seen = rates.now(snapshot(at, engine={"generated_tokens": 1000 + (at - 10) * 50}, faults=faults(demand=2 * at)))
    assert seen.tokens_per_second == 50
    assert seen.faults_per_second == 2


def test_looks_further_apart_than_the_window_still_tell() -> None:
    rates = Rates()
    for at in (0, 5, 10):
        seen = rates.now(snapshot(at, engine={"generated_tokens": 20 * at}))
    assert seen.tokens_per_second == 20


def test_after_a_pause_rates_begin_anew() -> None:
    rates = Rates()
    rates.now(snapshot(1))
    seen = rates.now(snapshot(1000, engine={"generated_tokens": 10**6}))
    assert seen.tokens_per_second == 0
