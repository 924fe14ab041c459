"""The offline optimum over arrays hits as much as the best of all ways to evict; natively and in numpy."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations

import pytest

from kvpager import native
from kvpager.errors import ConfigError
from kvpager.simulator.lru_path import replay_lru
from kvpager.simulator.min_path import replay_min, replay_min_in_numpy
from kvpager.simulator.trace import Trace
from tests.simulator.small_traces import chains_of, random_trace, trace_of

CASES = 1000


def most_hits(trace: Trace, capacity: int) -> int:
    """The most pages that any choice of victims hits, by trying them all."""
    chains = [chain[:capacity] for chain in chains_of(trace)]
    parent = trace.parent.tolist()

    def rests(cached: frozenset[int], own: frozenset[int], gone: int) -> Iterator[frozenset[int]]:
        """What is left after ``gone`` leaves went, one after the other, in every possible way."""
        for victims in combinations(sorted(cached - own), gone):
            rest = cached.difference(victims)
            if all(parent[page] < 0 or parent[page] in rest for page in rest):
                yield rest

    @cache
    def best(request: int, cached: frozenset[int]) -> int:
        if request == len(chains):
            return 0
        own = frozenset(chains[request])
        surplus = max(0, len(cached | own) - capacity)
        after = max(best(request + 1, rest | own) for rest in rests(cached, own, surplus))
        return len(cached & own) + after

    return best(0, frozenset())


def test_nothing_hits_more() -> None:
    num_beaten = 0
    for case in range(CASES):
        rng = random.Random(case)
        trace = random_trace(rng, requests=rng.randint(4, 11), fanout=2, depth=3)
        capacity = rng.randint(2, 6)
        path = replay_min(trace, capacity)
        assert path.hit_pages.sum() == most_hits(trace, capacity), f"case {case}"
        num_beaten += path.hit_pages.sum() > replay_lru(trace, capacity).hit_pages.sum()
    assert num_beaten > CASES // 10  # the cases leave something to choose


@pytest.mark.parametrize("seed", range(40))
def test_natively_as_in_numpy(seed: int) -> None:
    if native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    rng = random.Random(seed)
    trace = random_trace(rng, requests=rng.randint(1, 300), fanout=rng.randint(1, 4), depth=rng.randint(1, 8))
    for capacity in {1, rng.randint(1, 40), trace.num_blocks}:
        compiled, plain = replay_min(trace, capacity), replay_min_in_numpy(trace, capacity)
        assert compiled.hit_pages.tolist() == plain.hit_pages.tolist()
        assert compiled.evictions.tolist() == plain.evictions.tolist()


def test_by_hand() -> None:
    trace = trace_of([1], [2], [3], [1], [2])
    path = replay_min(trace, 2)
    assert path.hit_pages.tolist() == [0, 0, 0, 1, 0]  # 3 drops 2, which is needed later than 1
    assert path.evictions.tolist() == [0, 0, 1, 0, 1]


def test_without_native_kernels_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda: None)
    assert replay_min(trace_of([1, 2], [1, 2]), 2).hit_pages.tolist() == [0, 2]


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        replay_min(trace_of([1]), 0)
