"""Replays in which requests overlap: live pages stay, and what does not fit is counted."""

from heapq import heappop, heappush

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.simulator.concurrent import LiveSet, Service, replay_concurrently, run_concurrently
from kvpager.simulator.replay import replay_levels
from kvpager.simulator.replay_cache import LevelPlan, SimulatedCache
from kvpager.simulator.report import TraceFacts
from tests.simulator.forest import random_trace, trace_of
from tests.simulator.naive import NaiveLevels

SLOW = Service(prefill_speed=10.0, token_seconds=0.1)  # some three requests at a time in the traces here


def device(capacity: int) -> list[LevelPlan]:
    return [LevelPlan("device", capacity, "lru")]


@pytest.mark.parametrize("capacities", [(2,), (12,), (40,), (12, 9)], ids=str)
def test_hits_are_those_of_a_model_that_looks_at_everything(capacities: tuple[int, ...]) -> None:
    for seed in range(3):
        trace = random_trace(seed)
        plans = [
            LevelPlan(name, capacity, "lru") for name, capacity in zip(("device", "host"), capacities, strict=False)
        ]
        cache, naive = SimulatedCache(trace, plans), NaiveLevels(trace, list(capacities))
        run_concurrently(cache, trace, SLOW)
        cache.check()
        ends, live = SLOW.ends(trace), list[tuple[float, int, list[int]]]()
        for request, now in enumerate(trace.times.tolist()):
            while live and live[0][0] <= now:
                naive.depart(heappop(live)[2])
            heappush(live, (float(ends[request]), request, naive.arrive(request)))
        assert cache.found.tolist() == naive.found
        assert cache.num_cut == naive.cut
        assert cache.levels[0].num_live == 0


def test_requests_that_take_no_time_are_replayed_in_sequence() -> None:
    trace = random_trace(5)
    at_once = Service(prefill_speed=float("inf"), token_seconds=0.0)
    found = replay_concurrently(TraceFacts(trace), device(20), at_once)
    assert found.whole == replay_levels(TraceFacts(trace), device(20)).whole


def test_live_pages_are_no_victims_and_who_finds_no_room_is_counted() -> None:
    chains = [[0, 1], [2, 3], [0, 1]]
    overlapping = trace_of(chains, times=np.array([0.0, 0.1, 100.0]), output_tokens=[10, 10, 0])
    found = replay_concurrently(TraceFacts(overlapping), device(3), Service())
    assert (found.whole.blocks, found.cut) == (2, 1)
    apart = trace_of(chains, times=np.array([0.0, 50.0, 100.0]), output_tokens=[10, 10, 0])
    found = replay_concurrently(TraceFacts(apart), device(3), Service())
    assert (found.whole.blocks, found.cut) == (1, 0)


def test_the_live_set_is_what_requests_under_way_hold_and_shared_pages_count_once() -> None:
    chains = [[0, 1], [0, 2], [3]]
    trace = trace_of(chains, times=np.array([0.0, 0.1, 100.0]), output_tokens=[10, 10, 0])
    assert LiveSet.of(trace, Service()) == LiveSet(mean=(2 + 3 + 1) / 3, peak=3)
    tight = replay_concurrently(TraceFacts(trace), device(5), Service()).concurrency
    roomy = replay_concurrently(TraceFacts(trace), device(6), Service()).concurrency
    assert tight is not None
    assert roomy is not None
    assert (tight.is_tight, roomy.is_tight) == (True, False)


@pytest.mark.parametrize("values", [(0.0, 0.1), (-1.0, 0.1), (10.0, -0.1), (float("nan"), 0.1)], ids=str)
def test_a_service_that_makes_no_sense_is_refused(values: tuple[float, float]) -> None:
    Service(10.0, 0.0)
    with pytest.raises(ConfigError, match="prefill speed"):
        Service(*values)
