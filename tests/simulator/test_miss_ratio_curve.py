"""LRU's curve: the exact one equals a replay at each capacity, a sampled one is as near as its sample is large."""

import random

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.simulator.lru_path import replay_lru
from kvpager.simulator.miss_ratio_curve import (
    MissRatioCurve,
    curve_error,
    exact_curve,
    sampled_curve,
    sampled_curve_of_size,
)
from kvpager.simulator.stack_distance import NEVER, stack_distances
from kvpager.simulator.trace import Trace
from tests.simulator.small_traces import chains_of, random_trace, trace_of


@pytest.mark.parametrize("seed", range(30))
def test_distances_equal_those_of_a_stack(seed: int) -> None:
    rng = random.Random(seed)
    trace = random_trace(rng, requests=rng.randint(1, 40), fanout=rng.randint(1, 3), depth=rng.randint(1, 6))
    stack: list[int] = []
    expected = []
    for chain in chains_of(trace):
        expected += [stack.index(page) if page in stack else NEVER for page in chain]
        stack = chain + [page for page in stack if page not in chain]
    assert stack_distances(trace.first, trace.pages, trace.num_blocks).tolist() == expected


@pytest.mark.parametrize("seed", range(10))
def test_the_exact_curve_is_a_replay_at_each_capacity(seed: int) -> None:
    rng = random.Random(seed)
    whole = random_trace(rng, requests=80, fanout=3, depth=5)
    chains = chains_of(whole)
    trace = trace_of(*chains, tails=[rng.randint(0, 3) if chain else 0 for chain in chains])
    for start in (0, trace.second_half):
        curve = exact_curve(trace, start)
        for capacity in range(1, trace.num_blocks + 1):
            hits = replay_lru(trace, capacity).hit_pages
            assert curve.token_ratio(capacity) == pytest.approx(trace.token_ratio(hits, start))
            assert curve.block_ratio(capacity) == pytest.approx(trace.block_ratio(hits, start))


def sessions() -> Trace:
    """3,000 turns of 900 conversations of up to 12 pages, of which a few are much liked; one system page."""
    rng = np.random.default_rng(1)
    turns: dict[int, int] = {}
    chains = []
    for session in (900 * rng.random(3000) ** 2).astype(int).tolist():
        turns[session] = min(12, turns.get(session, 0) + int(rng.integers(1, 4)))
        chains.append([0, *(1 + session * 12 + k for k in range(turns[session]))])
    return trace_of(*chains)


def test_samples_are_nearer_the_larger_they_are() -> None:
    trace = sessions()
    exact = exact_curve(trace)
    assert curve_error(exact, exact).largest == 0

    def mean_error(curves: list[MissRatioCurve]) -> float:
        return float(np.mean([curve_error(curve, exact).mean for curve in curves]))

    few = mean_error([sampled_curve(trace, 0.05, seed=seed) for seed in range(5)])
    many = mean_error([sampled_curve(trace, 0.5, seed=seed) for seed in range(5)])
    bounded = mean_error([sampled_curve_of_size(trace, 900, seed=seed) for seed in range(2)])
    assert many < 0.015 < few < 0.1
    assert bounded < 0.03


def test_samples_are_not_biased() -> None:
    trace = sessions()
    exact = exact_curve(trace)
    curves = [sampled_curve(trace, 0.2, seed=seed) for seed in range(40)]
    for capacity in (100, 1000, 3000):
        mean = np.mean([curve.token_ratio(capacity) for curve in curves])
        assert mean == pytest.approx(exact.token_ratio(capacity), abs=0.01)


def test_a_sample_of_all_pages_is_exact() -> None:
    trace = random_trace(random.Random(3), requests=200, fanout=3, depth=6)
    exact = exact_curve(trace, 50)
    for curve in (sampled_curve(trace, 1.0, start=50), sampled_curve_of_size(trace, trace.num_blocks, start=50)):
        assert curve.sampled_references == exact.sampled_references
        assert curve_error(curve, exact).largest == pytest.approx(0, abs=1e-12)


def test_the_bounded_sample_stays_bounded() -> None:
    trace = sessions()
    small, large = sampled_curve_of_size(trace, 100), sampled_curve_of_size(trace, 2000)
    assert small.rate < large.rate < 1
    assert small.sampled_references < large.sampled_references < trace.num_references


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, float("nan")])
def test_rates_that_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        sampled_curve(trace_of([1]), rate)


def test_sizes_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one page"):
        sampled_curve_of_size(trace_of([1]), 0)


def test_a_trace_in_which_nothing_repeats_never_hits() -> None:
    trace = trace_of([1, 2], [3])
    for curve in (exact_curve(trace), sampled_curve(trace, 1.0), sampled_curve_of_size(trace, 10)):
        assert curve.token_ratio(100) == 0
        assert curve.token_ratio(0) == 0
