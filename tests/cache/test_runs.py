"""Contiguous allocation: pages lie in order in one run, runs are apart, and a hole is used where it is large enough."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager import ConfigError, HostTier, InvariantError, OutOfBlocks, Sequence, open_cache
from kvpager.cache.runs import Runs
from tests.cache.caches import LAYOUT, MIXED, opened
from tests.stamp import Stamp, T, run_step

PAGE = LAYOUT.page_size


def some(seed: int, count: int) -> list[int]:
    return T(100 * seed + 1, 100 * seed + count)


@contextmanager
def contiguous(num_blocks: int = 16) -> Iterator[Stamp]:
    with opened(num_blocks=num_blocks, contiguous=True, prefix_cache=False) as stamp:
        yield stamp


def runs_of(stamp: Stamp) -> Runs:
    assert stamp.cache.runs is not None
    return stamp.cache.runs


def begun(stamp: Stamp, tokens: int, blocks: int, seed: int = 1) -> Sequence:
    """A sequence with a run of ``blocks``, of which ``tokens`` are computed."""
    seq = stamp.cache.sequence(some(seed, tokens))
    try:
        runs_of(stamp).reserve(seq.row, blocks)
    except OutOfBlocks:
        seq.free()
        raise
    run_step(stamp, [seq])
    return seq


def blocks_of(seq: Sequence) -> list[int]:
    return [int(block) for block in seq.tables[0].mapped_blocks()]


def test_pages_take_the_blocks_of_their_run_in_order_as_they_are_touched() -> None:
    with contiguous() as stamp:
        first, second = begun(stamp, 2 * PAGE, 5), begun(stamp, PAGE, 4, seed=2)
        assert (blocks_of(first), blocks_of(second)) == ([0, 1], [5])
        for seq in (first, second):
            seq.append(some(9, PAGE))
        run_step(stamp, [second, first])
        assert (blocks_of(first), blocks_of(second)) == ([0, 1, 2], [5, 6])
        for seq in (first, second):
            stamp.verify(seq)
        assert stamp.cache.pool.counts().used == 5
        held = runs_of(stamp).statistics()
        assert (held.runs, held.reserved, held.free, held.longest) == (2, 9, 7, 7)
        assert "9 blocks reserved by 2 sequences; 7 others" in str(stamp.cache.statistics())


def test_free_blocks_that_are_apart_are_no_run() -> None:
    with contiguous(num_blocks=9) as stamp:
        seqs = [begun(stamp, 1, 3, seed) for seed in range(3)]
        seqs[0].free()
        seqs[2].free()
        assert runs_of(stamp).statistics().free == 6
        with pytest.raises(OutOfBlocks, match="4"):
            begun(stamp, 1, 4)
        assert blocks_of(begun(stamp, 1, 3)) == [0], "the lowest place where it fits"
        seqs[1].free()
        assert blocks_of(begun(stamp, 1, 4)) == [3], "neighbours that were freed are one run"


def test_no_run_grows() -> None:
    with contiguous() as stamp:
        seq = begun(stamp, 2 * PAGE, 2)
        seq.append(1)
        with pytest.raises(ConfigError, match="run of 2 blocks"), stamp.cache.step({seq: 1}):
            pass
        assert stamp.cache.pool.counts().used == 2
        without = stamp.cache.sequence(some(2, 1))
        with pytest.raises(ConfigError, match="run of 0 blocks"), stamp.cache.step({without: 1}):
            pass


def test_what_was_cut_off_is_touched_again_at_its_place() -> None:
    with contiguous() as stamp:
        seq = begun(stamp, 3 * PAGE, 4)
        seq.truncate(PAGE)
        assert stamp.cache.pool.counts().used == 1
        seq.append(some(5, 2 * PAGE))
        run_step(stamp, [seq])
        assert blocks_of(seq) == [0, 1, 2]
        stamp.verify(seq)


def test_a_run_whose_step_is_still_open_is_given_to_nobody() -> None:
    with contiguous(num_blocks=4) as stamp:
        seq = begun(stamp, PAGE, 4)
        seq.append(1)
        with stamp.cache.step({seq: 1}):
            seq.free()
            assert runs_of(stamp).statistics().longest == 2
        assert runs_of(stamp).statistics().longest == 4


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=40))
@settings(deadline=None)
def test_runs_are_apart_whatever_comes_and_goes(events: list[tuple[bool, int]]) -> None:
    with contiguous() as stamp:
        live: list[Sequence] = []
        for is_end, number in events:
            if is_end and live:
                live.pop(number % len(live)).free()
            elif not is_end:
                longest = runs_of(stamp).statistics().longest
                if number <= longest:
                    live.append(begun(stamp, number * PAGE, number, seed=len(live)))
                else:
                    with pytest.raises(OutOfBlocks):
                        begun(stamp, 1, number)
            stamp.cache.check()
        for seq in live:
            stamp.verify(seq)


def test_a_plan_takes_nothing_and_counts_what_it_promised() -> None:
    with contiguous(num_blocks=5) as stamp:
        plan = runs_of(stamp).plan()
        assert [plan.take(size) for size in (2, 2, 2, 1)] == [True, True, False, True]
        assert runs_of(stamp).statistics().free == 5


def test_check_finds_pages_outside_their_run() -> None:
    with contiguous() as stamp:
        seq = begun(stamp, 2 * PAGE, 3)
        runs_of(stamp).check({seq.row: np.array([0, 1])})
        with pytest.raises(InvariantError, match="do not lie in its run"):
            runs_of(stamp).check({seq.row: np.array([1, 0])})


def test_runs_share_and_move_nothing() -> None:
    with contiguous() as stamp:
        seq = begun(stamp, PAGE, 2)
        for refused in (seq.fork, lambda: stamp.cache.resize(8)):
            with pytest.raises(ConfigError, match="contiguous"):
                refused()
    for options in ({"prefix_cache": True}, {"prefix_cache": False, "tiers": [HostTier("1 MiB")]}):
        with pytest.raises(ConfigError, match="contiguous"):
            open_cache(LAYOUT, num_blocks=4, contiguous=True, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sliding"):
        open_cache(MIXED, num_blocks=4, contiguous=True, prefix_cache=False)
