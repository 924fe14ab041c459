"""The sequential replay: the same hits as a model that looks at everything, and as the ways over arrays."""

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.eviction.make import POLICIES
from kvpager.eviction.policy import EvictionPolicy, StopReason, Use
from kvpager.simulator.ages import NUM_BUCKETS, bucket_of, bucket_start, count_ages
from kvpager.simulator.page_keys import page_keys
from kvpager.simulator.replay import PATHS, replay, replay_levels, run
from kvpager.simulator.replay_cache import LevelPlan, ReplayClock, SimulatedCache
from kvpager.simulator.report import TraceFacts
from kvpager.types import Clock
from tests.simulator.forest import PAGE_TOKENS, random_trace, trace_of
from tests.simulator.naive import NaiveLevels


def device(capacity: int, policy: str = "lru") -> list[LevelPlan]:
    return [LevelPlan("device", capacity, policy)]


@pytest.mark.parametrize("capacity", [1, 2, 7, 20, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_lru_hits_what_a_model_that_looks_at_everything_hits(seed: int, capacity: int) -> None:
    trace = random_trace(seed)
    cache, naive = SimulatedCache(trace, device(capacity)), NaiveLevels(trace, [capacity])
    for request, now in enumerate(trace.times.tolist()):
        cache.depart(request, cache.arrive(request, now), now)
        naive.depart(naive.arrive(request))
        cache.check()
    assert cache.found[0].tolist() == naive.found[0]
    assert (cache.counts[0].evicted, cache.num_cut) == (naive.evicted[0], naive.cut)


@pytest.mark.parametrize("policy", [name for name in PATHS if name in POLICIES])
@pytest.mark.parametrize("capacity", [1, 3, 11, 40])
def test_the_ways_over_arrays_agree_with_the_policies_to_the_block(policy: str, capacity: int) -> None:
    for seed in range(5):
        facts = TraceFacts(random_trace(seed, requests=150))
        fast, exact = replay(facts, policy, capacity), replay_levels(facts, device(capacity, policy))
        assert (fast.whole, fast.second_half, fast.net) == (exact.whole, exact.second_half, exact.net)
        assert (fast.evictions, fast.cut, fast.age_at_hit) == (exact.evictions, exact.cut, exact.age_at_hit)
        assert fast.occupancy == pytest.approx(exact.occupancy)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_hits_more_than_the_optimum_and_all_hit_the_same_where_all_fits(policy: str) -> None:
    facts = TraceFacts(random_trace(7, requests=200))
    for capacity in (5, 20):
        found = replay_levels(facts, device(capacity, policy))
        assert found.whole.blocks <= replay(facts, "min", capacity).whole.blocks
    roomy = replay_levels(facts, device(facts.trace.num_blocks, policy))
    assert (roomy.whole, roomy.evictions) == (replay(facts, "min", facts.trace.num_blocks).whole, 0)


def test_hits_are_counted_in_tokens_and_a_short_last_page_counts_what_it_holds() -> None:
    trace = trace_of([[0, 1], [0, 1], [0, 2]], input_tokens=[7, 7, 8], partial=[True, True, False])
    found = replay_levels(TraceFacts(trace), device(10))
    assert (found.whole.blocks, found.whole.tokens) == (3, 7 + PAGE_TOKENS)
    assert (found.whole.asked_blocks, found.whole.asked_tokens) == (6, 22)
    assert found.second_half.tokens == 7 + PAGE_TOKENS
    assert found.whole.ratio == 11 / 22


def test_hits_net_of_the_page_that_most_requests_start_with() -> None:
    trace = trace_of([[0, 1], [0, 2], [0, 1], [3]])
    found = replay_levels(TraceFacts(trace), device(10))
    assert (found.whole.blocks, found.whole.asked_blocks) == (3, 7)
    assert (found.net.blocks, found.net.asked_blocks) == (1, 4)
    assert (found.net.tokens, found.net.asked_tokens) == (PAGE_TOKENS, 4 * PAGE_TOKENS)


def test_a_request_longer_than_the_capacity_keeps_its_first_pages() -> None:
    found = replay_levels(TraceFacts(trace_of([[0, 1, 2, 3], [0, 1, 2, 3]])), device(3))
    assert (found.whole.blocks, found.cut, found.evictions) == (3, 2, 0)


def test_ages_at_hit_and_at_eviction() -> None:
    trace = trace_of([[0], [1], [0], [2], [3]], times=np.array([0.0, 1.0, 3.0, 9.0, 9.5]))
    found = replay_levels(TraceFacts(trace), device(2))
    assert found.age_at_hit[bucket_of(3.0)] == sum(found.age_at_hit) == 1
    ages = found.levels[0].age_at_eviction
    assert ages is not None
    assert (ages[bucket_of(8.0)], ages[bucket_of(6.5)], sum(ages)) == (1, 1, 2)


def test_classes_of_ages_double() -> None:
    ages = [0.0, 0.99, 1.0, 1.9, 2.0, 3.99, 4.0, 1e5, 1e12, np.inf]
    counted = np.zeros(NUM_BUCKETS, int)
    for age in ages[:-1]:
        counted[bucket_of(age)] += 1
        assert bucket_start(bucket_of(age)) <= age
    counted[-1] += 1
    assert count_ages(np.array(ages)).tolist() == counted.tolist()


def test_keys_are_distinct() -> None:
    assert len(set(page_keys(10_000).tolist())) == 10_000


class _Heard:
    """A policy that notes what it is told of requests."""

    def __init__(self, inner: EvictionPolicy, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self.uses: list[tuple[float, int, Use]] = []

    def release(self, blocks: np.ndarray, use: Use) -> None:
        self.uses.append((self._clock(), len(blocks), use))
        self._inner.release(blocks, use)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_policies_are_told_of_the_request_and_the_time_of_the_trace() -> None:
    from kvpager.eviction.make import make_policy

    heard: list[_Heard] = []

    def make(name: str, num_blocks: int, clock: ReplayClock) -> EvictionPolicy:
        heard.append(_Heard(make_policy(name, num_blocks, clock), clock))
        return heard[-1]  # type: ignore[return-value]

    trace = trace_of(
        [[0, 1], [0, 2]],
        times=np.array([5.0, 8.0]),
        input_tokens=[8, 6],
        output_tokens=[30, 40],
        stop=[1, 2],
        partial=[False, True],
    )
    run(SimulatedCache(trace, device(9), make=make), trace)
    assert heard[0].uses == [
        (5.0, 2, Use(output_tokens=30, matched=0.0, stop=StopReason.TOOL_CALL)),
        (8.0, 2, Use(40, pytest.approx(4 / 6), StopReason.END_OF_TURN, partial_tail=True)),
    ]


def test_progress_is_told() -> None:
    told: list[int] = []
    replay_levels(TraceFacts(random_trace(0, requests=600)), device(9), progress=told.append)
    assert told == [0, 256, 512]


def test_a_trace_of_arrivals_alone_is_refused() -> None:
    with pytest.raises(ConfigError):
        TraceFacts(trace_of([[], []], input_tokens=[5, 5]))
