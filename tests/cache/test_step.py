"""A step: faults first, then a snapshot; left, it commits or takes everything back."""

import numpy as np
import pytest

from kvpager import ConfigError, OutOfBlocks
from kvpager.memory.block import BlockState
from tests.cache.caches import MIXED, opened, published_blocks
from tests.stamp import T, block_counts, prefill, run_step


class Broken(Exception):
    pass


def test_a_step_packs_the_new_tokens_of_its_sequences() -> None:
    with opened() as stamp:
        one, two = stamp.cache.sequence(T(1, 6)), prefill(stamp, T(20, 26))
        two.append(99)
        with stamp.cache.step({one: 5, two: 1}) as step:
            batch = step.batch
            assert (batch.num_sequences, batch.num_tokens) == (2, 6)
            assert batch.starts.tolist() == [0, 7]
            assert batch.stops.tolist() == [5, 8]
            assert batch.offsets().tolist() == [0, 5, 6]
            assert batch.positions().tolist() == [0, 1, 2, 3, 4, 7]
            tables = [seq.tables[0].mapped_blocks() for seq in (one, two)]
            expected = [tables[0][0]] * 4 + [tables[0][1], tables[1][1]]
            assert batch.token_blocks(0).tolist() == expected
            stamp.fill(step)
        stamp.verify(one)
        stamp.verify(two)


def test_a_decode_step_writes_to_the_last_block_of_each() -> None:
    with opened(MIXED) as stamp:
        seqs = [prefill(stamp, T(base, base + size)) for base, size in ((1, 2), (20, 3), (40, 4))]
        for seq in seqs:
            seq.append(7)
        with stamp.cache.step(dict.fromkeys(seqs, 1)) as step:
            for group in range(2):
                expected = [seq.tables[group].mapped_blocks()[-1] for seq in seqs]
                assert step.batch.token_blocks(group).tolist() == expected
            stamp.fill(step)
        for seq in seqs:
            stamp.verify(seq)


def test_tokens_count_only_when_the_step_has_ended() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 9))
        with stamp.cache.step({seq: 8}) as step:
            assert seq.length == 0
            assert stamp.cache.lookup(T(1, 9)).num_tokens == 0
            stamp.fill(step)
            stamp.cache.check()
        assert seq.length == 8
        assert stamp.cache.lookup(T(1, 9)).num_tokens == 8


def test_a_step_that_raises_takes_its_tokens_and_pages_back() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        seq.append(T(50, 60))
        before = block_counts(stamp.cache)
        with pytest.raises(Broken), stamp.cache.step({seq: 11}):
            raise Broken
        assert (seq.length, seq.num_tokens) == (6, 17)
        assert block_counts(stamp.cache) == before
        run_step(stamp, [seq])
        stamp.verify(seq)


def test_a_first_step_that_raises_leaves_an_empty_sequence() -> None:
    with opened(MIXED) as stamp:
        seq = stamp.cache.sequence(T(1, 6))
        with pytest.raises(Broken), stamp.cache.step({seq: 6}):
            raise Broken
        assert block_counts(stamp.cache)["free"] == 16
        assert stamp.cache.lookup(T(1, 6)).num_tokens == 0
        run_step(stamp, [seq])
        stamp.verify(seq)


@pytest.mark.parametrize("count", [0, -1])
def test_a_step_needs_a_token_of_every_sequence(count: int) -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 6))
        with pytest.raises(ConfigError, match="at least one new token"):
            stamp.cache.step({seq: count})
        with pytest.raises(ConfigError, match="at least one sequence"):
            stamp.cache.step({})
        assert block_counts(stamp.cache)["used"] == 0


def test_a_step_past_the_known_ids_is_refused_with_the_numbers() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        seq.append(7)
        with pytest.raises(ConfigError, match="2 tokens from position 6 needs 8 token ids, but the sequence has 7"):
            stamp.cache.step({seq: 2})
        with stamp.cache.step({seq: 1}) as step:
            stamp.fill(step)
        stamp.verify(seq)


def test_out_of_blocks_says_the_numbers_and_changes_nothing() -> None:
    with opened(num_blocks=8) as stamp:
        prefill(stamp, T(1, 8)).free()  # 2 cached
        live = prefill(stamp, T(20, 30))  # 3 used
        hog = stamp.cache.sequence(T(40, 70))
        before, content = block_counts(stamp.cache), published_blocks(stamp.cache)
        with pytest.raises(OutOfBlocks) as caught:
            stamp.cache.step({hog: 31})
        error = caught.value
        assert (error.needed, error.free, error.reclaimable, error.pinned, error.total) == (8, 3, 2, 0, 8)
        assert block_counts(stamp.cache) == before
        assert published_blocks(stamp.cache) == content
        assert hog.length == 0
        with stamp.cache.step({hog: 20}) as step:  # the control: 5 blocks can be had
            stamp.fill(step)
        stamp.verify(hog)
        stamp.verify(live)


def test_out_of_blocks_in_a_copy_changes_nothing() -> None:
    with opened(num_blocks=3) as stamp:
        seq = prefill(stamp, T(1, 10))
        twin = seq.fork()
        for each in (seq, twin):
            each.append(5)
        before = block_counts(stamp.cache)
        with pytest.raises(OutOfBlocks, match="1 blocks needed"):
            stamp.cache.step({seq: 1})
        assert block_counts(stamp.cache) == before
        stamp.verify(seq, T(1, 10))
        twin.free()
        run_step(stamp, [seq])
        stamp.verify(seq)


def test_blocks_freed_during_a_step_are_moving_until_it_ends() -> None:
    with opened(num_blocks=8) as stamp:
        seq, other = stamp.cache.sequence(T(1, 10)), stamp.cache.sequence(T(50, 69))
        step = stamp.cache.step({seq: 10})
        with step:
            seen = step.batch.tables[0][0].copy()
            blocks = seen[:3].tolist()
            seq.free()
            assert block_counts(stamp.cache) == {"free": 5, "used": 0, "cached": 0, "moving": 3}
            assert {stamp.cache.pool.state(block) for block in blocks} == {BlockState.MOVING}
            with stamp.cache.step({other: 20}) as inner:  # takes all that is free
                assert not set(inner.batch.tables[0][0][:5].tolist()) & set(blocks)
                stamp.fill(inner)
            with pytest.raises(OutOfBlocks) as caught:
                stamp.cache.step({stamp.cache.sequence([1]): 1})
            assert caught.value.pinned == 3
            assert step.batch.tables[0][0][:3].tolist() == blocks
        assert block_counts(stamp.cache) == {"free": 3, "used": 5, "cached": 0, "moving": 0}
        stamp.verify(other)


def test_published_pages_freed_during_a_step_settle_as_cached() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 8))
        seq.append(9)
        with stamp.cache.step({seq: 1}):
            seq.free()
            assert block_counts(stamp.cache)["moving"] == 3
            hit = stamp.cache.sequence([*T(1, 8), 9])
            assert hit.prefix_tokens == 8
            stamp.cache.check()
        assert block_counts(stamp.cache) == {"free": 14, "used": 2, "cached": 0, "moving": 0}
        hit.free()
        assert block_counts(stamp.cache)["cached"] == 2


def test_a_sequence_in_an_open_step_can_not_be_forked_cut_or_written() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        seq.append(7)
        rows = stamp.kv(T(1, 6), 0, 1)
        with stamp.cache.step({seq: 1}) as step:
            for call in (seq.fork, lambda: seq.truncate(1), lambda: seq.write(0, *rows)):
                with pytest.raises(ConfigError, match="step on it is open"):
                    call()
            with pytest.raises(ConfigError, match="step is open"):
                stamp.cache.resize(20)
            with pytest.raises(ConfigError, match="still open"):
                stamp.cache.close()
            stamp.fill(step)
        stamp.verify(seq.fork())


# --------------------------------------------------------------------------------------------------- overlapping steps


def test_steps_overlap_and_each_writes_behind_the_other() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 12))
        first, second = stamp.cache.step({seq: 6}), stamp.cache.step({seq: 6})
        assert second.batch.starts.tolist() == [6]
        with first:
            stamp.fill(first)
        assert seq.length == 6
        stamp.cache.check()
        with second:
            stamp.fill(second)
        assert seq.length == 12
        stamp.verify(seq)
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 12


def test_a_step_left_before_an_earlier_one_on_its_sequence_counts_when_that_has_ended() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 12))
        with stamp.cache.step({seq: 6}) as first:
            with stamp.cache.step({seq: 6}) as second:
                stamp.fill(second)
            assert seq.length == 0  # nothing counts before what lies before it
            assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 0
            stamp.cache.check()
            stamp.fill(first)
        assert seq.length == 12
        stamp.cache.check()
        stamp.verify(seq)
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 12


def test_when_a_step_fails_later_ones_on_its_sequence_do_not_count_either() -> None:
    """Their rows stand behind rows that were never written."""
    with opened() as stamp:
        seq, other = stamp.cache.sequence(T(1, 12)), stamp.cache.sequence(T(50, 61))
        first, second = stamp.cache.step({seq: 6}), stamp.cache.step({seq: 6, other: 12})
        with pytest.raises(Broken), first:
            raise Broken
        with second:
            stamp.fill(second)
        assert (seq.length, other.length) == (0, 12)
        assert stamp.cache.lookup([*T(1, 12), 13]).num_tokens == 0
        assert stamp.cache.lookup([*T(50, 61), 13]).num_tokens == 12
        stamp.verify(other)
        assert block_counts(stamp.cache)["used"] == 3
        run_step(stamp, [seq])
        stamp.verify(seq)


def test_when_an_outer_step_fails_the_inner_one_goes_with_it() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 5))
        seq.append(T(50, 61))
        first, second = stamp.cache.step({seq: 6}), stamp.cache.step({seq: 6})
        with second:
            stamp.fill(second)
        with pytest.raises(Broken), first:
            raise Broken
        assert seq.length == 5
        stamp.cache.check()
        stamp.verify(seq, T(1, 5))
        run_step(stamp, [seq])
        stamp.verify(seq)


def test_when_a_later_step_fails_the_earlier_one_counts() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 12))
        first, second = stamp.cache.step({seq: 6}), stamp.cache.step({seq: 6})
        with pytest.raises(Broken), second:
            raise Broken
        stamp.cache.check()
        with first:
            stamp.fill(first)
        assert seq.length == 6
        stamp.cache.check()
        stamp.verify(seq)
        run_step(stamp, [seq])
        stamp.verify(seq)


def test_an_unrelated_step_does_not_wait() -> None:
    with opened() as stamp:
        one, two = stamp.cache.sequence(T(1, 6)), stamp.cache.sequence(T(50, 55))
        with stamp.cache.step({one: 6}) as outer:
            with stamp.cache.step({two: 6}) as inner:
                stamp.fill(inner)
            assert two.length == 6
            stamp.fill(outer)
        for seq in (one, two):
            stamp.verify(seq)


def test_a_sequence_freed_under_two_steps_waits_for_both() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence(T(1, 12))
        first, second = stamp.cache.step({seq: 6}), stamp.cache.step({seq: 6})
        with first:
            seq.free()
        assert block_counts(stamp.cache)["moving"] == 3
        fresh = stamp.cache.sequence(T(1, 12))  # must not get the row of the freed one
        run_step(stamp, [fresh])
        with second:
            pass
        assert block_counts(stamp.cache) == {"free": 13, "used": 3, "cached": 0, "moving": 0}
        stamp.verify(fresh)


def test_a_table_given_to_a_step_is_a_snapshot() -> None:
    """I10: publishing may point a page elsewhere while a later step is open; that step reads what it was given."""
    with opened() as stamp:
        one, two = stamp.cache.sequence(T(1, 8)), stamp.cache.sequence(T(1, 8))
        with stamp.cache.step({one: 4, two: 4}) as step:
            stamp.fill(step)  # both are published: the second gives its block up for the first's
        later = stamp.cache.step({one: 4, two: 4})
        seen = [table.copy() for table in later.batch.tables[0]]
        third = stamp.cache.sequence(T(1, 9))
        run_step(stamp, [third])
        with later:
            stamp.fill(later)
            assert all(np.array_equal(now[:2], then[:2]) for now, then in zip(later.batch.tables[0], seen, strict=True))
        for seq in (one, two, third):
            stamp.verify(seq)


def test_a_block_that_an_open_step_may_read_is_not_written_in_place() -> None:
    """I5: the step's sequence is freed, its twin is the only owner left, and still must not write what is read."""
    with opened() as stamp:
        tokens = T(1, 8)
        seq = stamp.cache.sequence(tokens, publish_until=0)
        run_step(stamp, [seq])
        twin = seq.fork()
        seq.append(9)
        with stamp.cache.step({seq: 1}) as step:
            blocks = step.batch.tables[0][0][:2].tolist()
            before = [stamp.cache.arena.blocks[block].tobytes() for block in blocks]
            seq.free()
            twin.truncate(6)
            twin.append([70, 71])
            run_step(stamp, [twin])
            assert [stamp.cache.arena.blocks[block].tobytes() for block in blocks] == before
            stamp.cache.check()
        stamp.verify(twin)
