"""Running sequences with more pages than they may keep on the device."""

import numpy as np
import pytest

from kvpager import ConfigError, InvariantError, OutOfBlocks
from kvpager.cache.sequence import Sequence
from kvpager.cache.working_set import order
from kvpager.prefix.index import PrefixIndex
from kvpager.types import FaultKind, TierKind
from tests.cache.caches import opened
from tests.cache.paged import advance, host_of, open_limited, over_host, verify, write_down
from tests.cache.test_giving_back import GivesBack
from tests.stamp import Stamp, T


def test_a_prompt_longer_than_the_pool_is_computed_and_every_byte_is_kept() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 120), limit=5, chunk=8)
        assert len(seq.tables[0]) == 30
        assert stamp.cache.paging.num_resident(seq)[0] <= 5
        assert stamp.cache.paging.num_non_resident(seq) >= 25
        assert verify(stamp, seq) == 30
        stamp.cache.check()
        usage = host_of(stamp.cache).usage()
        assert usage.used == stamp.cache.paging.num_non_resident(seq)
        seq.free()
        assert host_of(stamp.cache).usage().used == 0


def test_without_a_limit_it_does_not_fit() -> None:
    """The control."""
    with over_host(num_blocks=8) as stamp, pytest.raises(OutOfBlocks):
        open_limited(stamp, T(1, 120), limit=None, chunk=8)


def test_decoding_goes_on_for_as_long_as_it_likes() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 60), limit=6, chunk=4, is_settled=True)
        before = seq.tables[0].snapshot()[: len(seq.tables[0])].copy()
        for token in range(100, 160):
            seq.append(token)
            advance(stamp, seq, is_settled=True)
            stamp.cache.check()
        assert verify(stamp, seq) == 30
        stays = before[:2]
        assert (seq.tables[0].snapshot()[:2] == stays).all()  # the resident set is static


def test_a_step_is_told_where_the_pages_lie() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 60), limit=6, chunk=4)
        seq.append(99)
        with stamp.cache.step({seq: 1}) as step:
            rest = step.batch.non_resident[0, 0]
            table = step.batch.tables[0][0][:16]
            assert ((rest.tier[:16] == TierKind.HOST) == (table < 0)).all()
            assert (rest.address[:16][table < 0] != 0).all()
            assert (table >= 0).sum() <= 6
            assert step.batch.touched is not None
            step.batch.touched.parts[0] += 2 * 10
            step.batch.touched.bytes[0] += 1000
            step.batch.touched.seconds[0] += 0.5
            stamp.fill(step)
        assert (seq.faults.pages, seq.faults.bytes, seq.faults.seconds) == (10, 1000, 0.5)
        assert stamp.cache.statistics().faults[FaultKind.MAJOR].pages == 10


def test_a_step_over_ordinary_sequences_is_told_nothing() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = stamp.cache.sequence(T(1, 9))
        with stamp.cache.step({seq: 9}) as step:
            stamp.fill(step)
        assert (step.batch.states, step.batch.touched) == ((), None)
        assert not step.batch.non_resident


def test_a_limit_needs_tiers_and_token_ids() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 9))
        with pytest.raises(ConfigError, match="open the cache with tiers="):
            seq.resident_limit = 4
    with over_host() as stamp:
        seq, by_hand = stamp.cache.sequence(T(1, 9)), stamp.cache.sequence()
        for limit in (0, 1, True):
            with pytest.raises(ConfigError, match="at least 2"):
                seq.resident_limit = limit
        with pytest.raises(ConfigError, match="by hand"):
            by_hand.resident_limit = 4
        seq.resident_limit = 2


def test_a_step_that_writes_more_than_the_limit_is_refused_with_the_numbers() -> None:
    with over_host() as stamp:
        seq = stamp.cache.sequence(T(1, 60))
        seq.resident_limit = 4
        with pytest.raises(ConfigError, match=r"30 tokens needs 10 pages .* may have 4"):
            stamp.cache.step({seq: 30})
        advance(stamp, seq, 4)
        assert verify(stamp, seq) == 15


def test_a_prefix_below_is_used_where_it_lies() -> None:
    with over_host(num_blocks=12) as stamp:
        first = open_limited(stamp, T(1, 100), limit=5, chunk=8)
        write_down(stamp.cache)
        first.free()
        stamp.cache.clear_prefix()
        before = stamp.cache.statistics().migration
        seq = stamp.cache.sequence(T(1, 100), resident_limit=4, non_resident=True)
        assert seq.prefix_by_tier == {TierKind.HOST: 96}
        assert seq.prefix_tokens == 96
        assert stamp.cache.pool.counts().used == 0
        assert stamp.cache.statistics().migration.promoted == before.promoted
        verify(stamp, seq)
        advance(stamp, seq)
        for token in range(200, 230):
            seq.append(token)
            advance(stamp, seq)
            stamp.cache.check()
        assert verify(stamp, seq) == 33
        assert stamp.cache.rows.published[seq.row] == 32


def test_pages_of_the_device_are_mapped_up_to_the_limit() -> None:
    with over_host(num_blocks=32) as stamp:
        first = open_limited(stamp, T(1, 100), limit=None, chunk=8)
        write_down(stamp.cache)
        seq = stamp.cache.sequence(T(1, 100), resident_limit=6, non_resident=True)
        assert seq.prefix_by_tier == {TierKind.DEVICE: 24, TierKind.HOST: 72}
        assert stamp.cache.paging.num_resident(seq) == [6]
        stamp.cache.check()
        advance(stamp, seq)
        first.free()
        assert verify(stamp, seq) == 25


def test_a_second_request_brings_up_what_was_paged_out() -> None:
    """The device has a gap in the middle of the prefix; what lies behind it is found again once the gap is filled."""
    with over_host(num_blocks=32) as stamp:
        first = open_limited(stamp, T(1, 60), limit=6, chunk=8)
        assert stamp.cache.lookup(T(1, 60)).num_tokens < 30
        second = stamp.cache.sequence(T(1, 60))
        assert second.prefix_tokens >= 56
        assert TierKind.HOST in second.prefix_by_tier
        stamp.cache.check()
        advance(stamp, second)
        stamp.verify(second)
        first.free()
        second.free()
        stamp.cache.check()


def test_pages_that_attention_selects_often_come_up_in_place_of_others() -> None:
    with over_host(num_blocks=16) as stamp:
        seq = open_limited(stamp, T(1, 80), limit=12, chunk=4)
        seq.attention = state = GivesBack()
        below = np.flatnonzero(seq.tables[0].tiers() == TierKind.HOST)[-3:]
        for is_used in (False, True):  # the control first: nothing is known
            if is_used:
                state.use = np.full(60, 0.001, np.float32)
                state.use[below] = 0.3
                write_down(stamp.cache)
            for token in range(20):
                seq.append(token)
                advance(stamp, seq)
                stamp.cache.lower.settle(60)
                stamp.cache.tick()
                assert stamp.cache.paging.num_resident(seq)[0] <= 12
            assert (seq.tables[0].tiers()[below] == TierKind.DEVICE).all() == is_used
        assert verify(stamp, seq) == 30
        assert stamp.cache.statistics().paging.back >= 3


def test_what_the_order_of_going_is() -> None:
    pages = np.array([0, 1, 2, 3, 6, 7, 8, 9])
    assert order(pages, 10).tolist() == [3, 2, 1, 6, 7, 8, 9, 0]
    use = np.array([0.5, 0.2, 0.0, 0.1, 0, 0, 0, 0, 0, 0], np.float32)
    assert order(pages, 10, use).tolist() == [2, 3, 1, 6, 7, 8, 9, 0]
    assert order(pages[:0], 10).tolist() == []


@pytest.mark.parametrize("is_right", [True, False], ids=["now", "control"])
def test_all_pages_before_a_gap_can_be_reclaimed(is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last page behind the gap its whole chain of nodes goes: the page before it may go next."""
    if not is_right:
        prune = PrefixIndex.prune
        monkeypatch.setattr(PrefixIndex, "prune", lambda self, node: (prune(self, node), self.parent(node))[1])
    with over_host(num_blocks=16) as stamp:
        seq = open_limited(stamp, T(1, 80), limit=8, chunk=4)
        stamp.cache.lower.settle(60)
        resident = np.flatnonzero(seq.tables[0].tiers() == TierKind.DEVICE)
        assert len(resident) < resident[-1] - resident[0]
        seq.free()
        try:
            for wanted in range(17):
                assert stamp.cache._reclaimer.make_free(wanted)
                stamp.cache.check()
        except InvariantError:
            assert not is_right
            stamp.cache.clear_prefix()
        else:
            assert is_right


def step_when_it_can(stamp: Stamp, seq: Sequence) -> None:
    while not stamp.cache.paging.can_step(seq, 4):
        stamp.cache.lower.wait(0.05)
    with stamp.cache.step({seq: 4}) as step:
        stamp.fill(step)


def test_a_step_that_has_nothing_to_wait_for_is_refused_instead() -> None:
    """The tier below is full of pages in use: nothing can go down."""
    with over_host(num_blocks=16, slots=8) as stamp:
        seq = stamp.cache.sequence(T(1, 200), resident_limit=6)
        for _ in range(8 + 6):
            step_when_it_can(stamp, seq)
        with pytest.raises(OutOfBlocks):
            step_when_it_can(stamp, seq)
        assert verify(stamp, seq) == 14


def test_a_page_that_is_published_after_it_went_down_under_a_private_key_is_not_kept_twice() -> None:
    with over_host(num_blocks=16) as stamp:
        cache, tier = stamp.cache, host_of(stamp.cache)
        seq = open_limited(stamp, T(1, 40), limit=4, chunk=4, is_settled=True)
        seq.truncate(24)
        assert cache.rows.published[seq.row] == 1  # page 0 is the last on the device
        page = np.array([4])
        cache.paging.page_in(seq, 0, page)
        assert not cache.paging._below.departures.clean_or_written(seq, 0, page)
        cache.lower.settle(60)
        private = seq.away[0].copies[4].page.key
        assert tier.contains(private)
        seq.resident_limit = None
        seq.append(T(25, 40))
        advance(stamp, seq)
        assert cache.rows.published[seq.row] == 10
        cache.check()
        cache.lower.settle(60)
        assert cache.paging.page_out(seq, 0, page) == 1
        cache.tick()
        assert not tier.contains(private)
        assert verify(stamp, seq) == 10
        seq.free()
        cache.check()


def test_a_sequence_freed_during_its_step_leaves_nothing_below() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 60), limit=6, chunk=4)
        stamp.cache.paging.drop_pages(seq, 0, np.array([2]))  # what it computes now is its own
        seq.append(list(range(100, 140)))
        advance(stamp, seq)
        assert host_of(stamp.cache).usage().used > 0
        seq.append(99)
        with stamp.cache.step({seq: 1}) as step:
            stamp.fill(step)
            seq.free()
        stamp.cache.lower.settle(60)
        stamp.cache.tick()
        assert host_of(stamp.cache).usage().used == 0
        stamp.cache.check()
