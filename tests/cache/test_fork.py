"""Fork shares every page; the first write to a shared page copies it, and the last owner writes in place."""

import pytest

from kvpager.types import FaultKind
from tests.cache.caches import MIXED, opened
from tests.stamp import Stamp, T, block_counts, prefill, run_step


def copies(stamp: Stamp) -> int:
    return stamp.cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages


def test_a_fork_takes_no_block_and_reads_the_same() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        before = block_counts(stamp.cache)
        twin = seq.fork()
        assert block_counts(stamp.cache) == before
        assert stamp.cache.statistics().shared_blocks == 3
        assert (twin.length, twin.tokens, twin.prefix_tokens) == (10, seq.tokens, seq.prefix_tokens)
        stamp.verify(twin)


def test_the_ids_of_a_fork_are_its_own() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 6))
        twin = seq.fork()
        twin.append(9)
        assert seq.num_tokens == 6
        assert twin.num_tokens == 7


def test_the_first_write_copies_one_page_and_the_other_keeps_its_bytes() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        twin = seq.fork()
        twin.append(50)
        run_step(stamp, [twin])
        assert copies(stamp) == 1
        assert block_counts(stamp.cache)["used"] == 4
        seq.append(60)
        run_step(stamp, [seq])
        assert copies(stamp) == 1, "the last owner writes in place"
        assert block_counts(stamp.cache)["used"] == 4
        for each in (seq, twin):
            stamp.verify(each)


def test_a_fork_at_a_page_border_copies_nothing() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 8))
        twin = seq.fork()
        for each, token in ((seq, 50), (twin, 60)):
            each.append(token)
            run_step(stamp, [each])
        assert copies(stamp) == 0
        for each in (seq, twin):
            stamp.verify(each)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_when_all_owners_write_in_one_step_all_but_one_copy(count: int) -> None:
    with opened(num_blocks=32) as stamp:
        seqs = [prefill(stamp, T(1, 10))]
        seqs += [seqs[0].fork() for _ in range(count - 1)]
        for number, seq in enumerate(seqs):
            seq.append(100 + number)
        assert sum(stamp.cache.num_copies([seq])[0] for seq in seqs) == count  # each alone would copy
        run_step(stamp, seqs)
        assert copies(stamp) == count - 1
        assert block_counts(stamp.cache)["used"] == 2 + count
        for seq in seqs:
            stamp.verify(seq)


def test_every_layer_group_copies_its_own_page() -> None:
    with opened(MIXED) as stamp:
        seq = prefill(stamp, T(1, 6))
        twin = seq.fork()
        for each, token in ((seq, 50), (twin, 60)):
            each.append(token)
            run_step(stamp, [each])
            stamp.cache.check()
        assert copies(stamp) == 2
        for each in (seq, twin):
            stamp.verify(each)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_forks_are_freed_in_any_order(order: tuple[int, ...]) -> None:
    with opened(num_blocks=24) as stamp:
        seqs = [prefill(stamp, T(1, 11))]
        seqs += [seqs[0].fork(), seqs[0].fork()]
        for number, seq in enumerate(seqs):
            seq.append(T(100 * (number + 1), 100 * (number + 1) + 5))
            run_step(stamp, [seq])
        for at in order:
            for seq in seqs:
                if not seq.is_freed:
                    stamp.verify(seq)
            seqs[at].free()
            block_counts(stamp.cache)
        assert block_counts(stamp.cache)["used"] == 0


def test_a_fork_of_a_fork_of_an_empty_sequence() -> None:
    with opened() as stamp:
        seq = stamp.cache.sequence([1])
        twin = seq.fork().fork()
        twin.append([2, 3])
        run_step(stamp, [twin, seq])
        for each in (seq, twin):
            stamp.verify(each)


def test_what_a_fork_holds_alone_is_what_freeing_it_would_give() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        twin = seq.fork()
        assert stamp.cache.num_freeable(twin) == 0
        twin.append(T(50, 60))
        run_step(stamp, [twin])
        alone = stamp.cache.num_freeable(twin)
        before = stamp.cache.num_available
        twin.free()
        assert stamp.cache.num_available - before == alone == 4


def test_truncating_a_fork_leaves_the_other_alone() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        twin = seq.fork()
        twin.truncate(3)
        twin.append([50, 51])
        run_step(stamp, [twin])
        for each in (seq, twin):
            stamp.verify(each)
        stamp.cache.check()
