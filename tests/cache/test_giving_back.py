"""Attention that needs some pages no more: the cache takes them out of the sequence, in its middle too."""

from collections.abc import Callable

import numpy as np
import pytest

from kvpager import ConfigError, KVLayout
from kvpager.cache.sequence import Sequence
from tests.cache.caches import LAYOUT, MIXED, opened
from tests.cache.paged import advance, over_host, verify
from tests.stamp import Stamp, T, prefill


class GivesBack:
    """An AttentionState that drops what it is told to."""

    description = "approximate"

    def __init__(self, choose: Callable[[int], list[int]] = lambda length: [], *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        self.choose = choose
        self.cuts: list[int] = []
        self.use: np.ndarray | None = None

    def page_use(self, group: int) -> np.ndarray | None:
        return self.use

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        return np.array(self.choose(length), np.int64)

    def forked(self) -> "GivesBack":
        return GivesBack(self.choose, is_exact=self.is_exact)

    def cut(self, length: int) -> None:
        self.cuts.append(length)


def drop(stamp: Stamp, seq: Sequence, *pages: int) -> None:
    for group in range(stamp.layout.num_groups):
        stamp.cache.paging.drop_pages(seq, group, np.array(pages))
    stamp.cache.check()


def test_dropped_pages_give_their_blocks_back_and_leave_holes() -> None:
    with opened(num_blocks=16, prefix_cache=False) as stamp:
        seq = prefill(stamp, T(1, 30))
        assert stamp.cache.pool.counts().used == 8
        drop(stamp, seq, 1, 4, 5)
        assert stamp.cache.pool.counts().free == 11
        assert seq.length == 30
        assert [not seq.translate(4 * page).is_mapped for page in range(8)] == [page in (1, 4, 5) for page in range(8)]
        seq.append(T(31, 40))
        with stamp.cache.step({seq: 10}) as step:
            assert step.batch.tables[0][0][[1, 4, 5]].tolist() == [-1, -1, -1]
            stamp.fill(step)
        assert verify(stamp, seq) == 7
        drop(stamp, seq, 1, 2)  # what is gone already may be named again
        assert verify(stamp, seq) == 6


@pytest.mark.parametrize("layout", [LAYOUT, MIXED], ids=["full", "mixed"])
def test_what_others_share_stays_whole(layout: KVLayout) -> None:
    with opened(layout, num_blocks=40) as stamp:
        first = prefill(stamp, T(1, 30))
        twin, second = first.fork(), prefill(stamp, T(1, 30))
        drop(stamp, first, 4, 5)
        stamp.verify(twin)
        stamp.verify(second)
        third = stamp.cache.sequence(T(1, 30))
        assert third.prefix_tokens == 28
        first.free()
        stamp.cache.check()
        stamp.verify(twin)


def test_the_last_page_and_begun_ones_are_not_dropped() -> None:
    with opened() as stamp:
        for tokens, page in ((30, 7), (28, 6)):
            seq = prefill(stamp, T(1, tokens))
            with pytest.raises(ConfigError, match="not full, or the last one"):
                drop(stamp, seq, page)
            drop(stamp, seq, page - 1)
            seq.free()


def test_nothing_that_was_computed_after_a_drop_is_ever_found() -> None:
    with opened(num_blocks=32) as stamp:
        seq = prefill(stamp, T(1, 24))
        drop(stamp, seq, 2)
        assert seq.exact_until == 24
        seq.append(T(25, 40))
        advance(stamp, seq)
        assert stamp.cache.lookup(T(1, 40)).num_tokens == 24
        seq.free()
        assert stamp.cache.lookup(T(1, 40)).num_tokens == 24
        exact = prefill(stamp, T(1, 40))  # the control
        assert exact.prefix_tokens == 24
        assert stamp.cache.lookup(T(1, 41)).num_tokens == 40


def test_a_sequence_that_drops_the_page_it_stands_on_can_still_be_freed() -> None:
    with opened(num_blocks=16) as stamp:
        seq = prefill(stamp, T(1, 25))
        drop(stamp, seq, 4, 5)
        other = prefill(stamp, T(100, 130))  # what was dropped is reclaimed meanwhile
        stamp.cache.check()
        other.free()
        seq.truncate(10)
        stamp.cache.check()
        seq.free()


def test_attention_says_what_goes_after_each_step() -> None:
    with opened(num_blocks=16) as stamp:
        seq = stamp.cache.sequence(T(1, 60))
        seq.attention = GivesBack(lambda length: list(range(1, max(1, length // 4 - 2))))
        while seq.length < seq.num_tokens:
            with stamp.cache.step({seq: 4}) as step:
                assert step.batch.states == (seq.attention,)
                stamp.fill(step)
            stamp.cache.check()
            assert stamp.cache.pool.counts().used <= 4
        assert verify(stamp, seq) == 3
        assert seq.exact_until == 16  # page 1 went when four pages were full


def test_decoding_with_approximate_attention_publishes_nothing() -> None:
    with opened(num_blocks=32) as stamp:
        for is_exact, found in ((False, 12), (True, 24)):
            seq = stamp.cache.sequence(T(100 * found, 100 * found + 13))
            seq.attention = GivesBack(is_exact=is_exact)
            advance(stamp, seq, chunk=7)
            for token in range(12):
                seq.append(token)
                advance(stamp, seq)
            assert stamp.cache.lookup([*seq.tokens, 1]).num_tokens == found
            seq.free()


def test_pages_that_were_given_back_bound_what_can_be_taken_back() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 30))
        seq.attention = state = GivesBack()
        drop(stamp, seq, 3)
        with pytest.raises(ConfigError, match="given back"):
            seq.truncate(14)
        assert state.cuts == []
        seq.truncate(16)
        stamp.cache.check()
        seq.truncate(10)
        assert state.cuts == [16, 10]
        seq.append(T(11, 30))
        advance(stamp, seq)
        assert verify(stamp, seq) == 8


def test_a_fork_has_the_same_holes_and_an_attention_of_its_own() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 30))
        seq.attention = GivesBack()
        drop(stamp, seq, 3)
        twin = seq.fork()
        assert twin.attention is not None
        assert twin.attention is not seq.attention
        stamp.cache.check()
        drop(stamp, twin, 2)
        assert (verify(stamp, seq), verify(stamp, twin)) == (7, 6)


def test_pages_below_the_device_can_be_dropped_too() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = stamp.cache.sequence(T(1, 60), resident_limit=5)
        advance(stamp, seq, 8)
        stamp.cache.lower.settle(60)
        below = np.flatnonzero(seq.tables[0].tiers() == 2)
        held = stamp.cache.lower.migration.tiers[0].usage().used
        drop(stamp, seq, *below[:3].tolist())
        assert stamp.cache.lower.migration.tiers[0].usage().used == held - 3
        assert verify(stamp, seq) == 12


def test_what_lies_away_is_not_read_or_overwritten_by_hand() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = stamp.cache.sequence(T(1, 60), resident_limit=5, publish_until=0)
        advance(stamp, seq, 8)
        with pytest.raises(ConfigError, match="not on the device"):
            seq.read(0, 60)
        with pytest.raises(ConfigError, match="not overwritten"):
            seq.write(58, *stamp.kv(T(1, 60), 58, 60))
        seq.read(57, 60)  # the control


def test_what_was_dropped_can_be_had_by_others_though_pages_behind_it_are_in_use() -> None:
    with opened(num_blocks=12) as stamp:
        seq = prefill(stamp, T(1, 40))
        drop(stamp, seq, *range(1, 8))
        assert stamp.cache.lookup(T(1, 40)).num_tokens == 39  # as long as nobody needs the blocks
        small = prefill(stamp, T(60, 75))
        assert stamp.cache.lookup(T(1, 40)).num_tokens == 24
        small.free()
        other = prefill(stamp, T(100, 135))
        stamp.cache.check()
        stamp.verify(other)
        assert verify(stamp, seq) == 3
        assert stamp.cache.lookup(T(1, 40)).num_tokens == 4
        seq.free()
        other.free()
        assert stamp.cache._reclaimer.make_free(12)


def test_what_is_computed_after_a_cut_is_not_found_either_once_pages_are_gone() -> None:
    with opened(num_blocks=32) as stamp:
        seq = prefill(stamp, T(1, 24))
        drop(stamp, seq, 0)
        seq.truncate(8)
        assert seq.exact_until == 8
        seq.append(T(50, 70))
        advance(stamp, seq)
        assert stamp.cache.lookup([*T(1, 8), *T(50, 70)]).num_tokens == 8
