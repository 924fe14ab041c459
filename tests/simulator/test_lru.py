"""LRU over arrays equals a model that keeps blocks, stamps and children; natively and in numpy."""

import random

import numpy as np
import pytest

from kvpager import native
from kvpager.errors import ConfigError
from kvpager.simulator.lru_path import replay_lru, replay_lru_in_numpy
from kvpager.simulator.trace import Trace
from tests.simulator.small_traces import chains_of, random_trace, trace_of


def modelled(trace: Trace, capacity: int) -> tuple[list[int], list[int]]:
    """Hits and evictions of each request, block by block as the cache does it."""
    released: dict[int, int] = {}  # of each cached page, when it was last let go
    clock = 0
    hits, evictions = [], []
    for whole in chains_of(trace):
        chain = whole[:capacity]
        found = 0
        while found < len(chain) and chain[found] in released:
            found += 1
        evicted = 0
        for page in chain[found:]:
            if len(released) == capacity:
                inner = {int(trace.parent[cached]) for cached in released}
                leaves = [cached for cached in released if cached not in inner and cached not in chain]
                del released[min(leaves, key=released.__getitem__)]
                evicted += 1
            released[page] = clock
        for page in reversed(chain):
            clock += 1
            released[page] = clock
        hits.append(found)
        evictions.append(evicted)
    return hits, evictions


@pytest.mark.parametrize("seed", range(60))
def test_it_equals_the_model(seed: int) -> None:
    rng = random.Random(seed)
    trace = random_trace(rng, requests=rng.randint(1, 60), fanout=rng.randint(1, 3), depth=rng.randint(1, 6))
    for capacity in {1, 2, rng.randint(1, 12), trace.num_blocks}:
        hits, evictions = modelled(trace, capacity)
        for replay in (replay_lru, replay_lru_in_numpy):
            path = replay(trace, capacity)
            assert path.hit_pages.tolist() == hits
            assert path.evictions.tolist() == evictions


def test_by_hand() -> None:
    trace = trace_of([1, 2, 3], [4], [1, 2, 3], [1, 5], [1, 2, 3])
    path = replay_lru(trace, 3)
    assert path.hit_pages.tolist() == [0, 0, 2, 1, 2]  # 4 drops 3; 3 drops 4; 5 drops 3; 3 drops 5
    assert path.evictions.tolist() == [0, 1, 1, 1, 1]


def test_no_requests_and_requests_without_pages() -> None:
    assert replay_lru(trace_of(), 1).hit_pages.tolist() == []
    assert replay_lru(trace_of([1], [], [1]), 1).hit_pages.tolist() == [0, 0, 1]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_cache_without_blocks_is_refused(capacity: int) -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        replay_lru(trace_of([1]), capacity)


def test_without_native_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of([1, 2], [1, 2])
    monkeypatch.setattr(native, "module", lambda: None)
    assert replay_lru(trace, 2).hit_pages.tolist() == [0, 2]


def test_the_native_one_checks_its_arguments() -> None:
    kernels = native.module()
    if kernels is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    trace = trace_of([1, 2], [1])
    two = np.empty(2, np.int32)
    kernels.replay_lru(trace.first, trace.pages, 2, 2, two, two.copy())
    for changed in (
        (trace.first, trace.pages, 1, 2, two, two.copy()),  # a page outside
        (trace.first, trace.pages, 2, 0, two, two.copy()),
        (trace.first, trace.pages, 2, 2, two[:1], two.copy()),
        (trace.first[:-1], trace.pages, 2, 2, two[:1], two[:1].copy()),
        (np.array([0, 4, 3]), trace.pages, 2, 2, two, two.copy()),
    ):
        with pytest.raises((ValueError, IndexError)):
            kernels.replay_lru(*changed)
