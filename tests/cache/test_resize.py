"""The pool grows and shrinks under live sequences, and every byte stays."""

import random

import pytest

from kvpager import ConfigError, OutOfBlocks
from tests.cache.caches import LAYOUT, MIXED, opened, published_blocks
from tests.stamp import T, block_counts, prefill, run_step

ROOM = {"max_capacity": 64 * LAYOUT.block_stride}


def test_growing_gives_room_for_what_did_not_fit() -> None:
    with opened(num_blocks=2, **ROOM) as stamp:
        seq = stamp.cache.sequence(T(1, 20))
        with pytest.raises(OutOfBlocks):
            stamp.cache.step({seq: 20})
        stamp.cache.resize(5)
        run_step(stamp, [seq])
        stamp.verify(seq)
        assert block_counts(stamp.cache) == {"free": 0, "used": 5, "cached": 0, "moving": 0}


def test_growing_past_what_was_reserved_is_refused_and_changes_nothing() -> None:
    with opened(num_blocks=4, max_capacity=6 * LAYOUT.block_stride) as stamp:
        seq = prefill(stamp, T(1, 10))
        with pytest.raises(ConfigError, match="can grow to 6 blocks, not 7"):
            stamp.cache.resize(7)
        assert block_counts(stamp.cache) == {"free": 1, "used": 3, "cached": 0, "moving": 0}
        stamp.cache.resize(6)
        assert block_counts(stamp.cache)["free"] == 3
        stamp.verify(seq)


def test_shrinking_moves_live_pages_down_with_their_bytes() -> None:
    with opened(num_blocks=16) as stamp:
        low, high = prefill(stamp, T(1, 20)), prefill(stamp, T(50, 70))
        twin = high.fork()
        low.free()
        stamp.cache.clear_prefix()
        stamp.cache.resize(6)
        assert block_counts(stamp.cache) == {"free": 0, "used": 6, "cached": 0, "moving": 0}
        for seq in (high, twin):
            stamp.verify(seq)
        twin.free()
        stamp.cache.resize(16)
        high.append(T(80, 90))
        run_step(stamp, [high])
        stamp.verify(high)


def test_shrinking_drops_cached_pages_and_keeps_those_that_fit_findable() -> None:
    with opened(num_blocks=16) as stamp:
        prefill(stamp, T(1, 16)).free()
        prefill(stamp, T(50, 65)).free()
        stamp.cache.resize(5)
        assert block_counts(stamp.cache) == {"free": 0, "used": 0, "cached": 5, "moving": 0}
        assert stamp.cache.lookup([*T(50, 65), 1]).num_tokens == 16  # the younger one
        assert stamp.cache.lookup([*T(1, 16), 1]).num_tokens == 4
        hit = stamp.cache.sequence([*T(50, 65), 1])
        stamp.verify(hit)


def test_shrinking_below_the_live_pages_is_refused_and_changes_nothing() -> None:
    with opened(num_blocks=16) as stamp:
        prefill(stamp, T(50, 57)).free()
        seq = prefill(stamp, T(1, 20))
        before, content = block_counts(stamp.cache), published_blocks(stamp.cache)
        with pytest.raises(OutOfBlocks) as caught:
            stamp.cache.resize(4)
        assert caught.value.needed == 5
        assert block_counts(stamp.cache) == before
        assert published_blocks(stamp.cache) == content
        stamp.cache.resize(5)
        stamp.verify(seq)


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_block_is_refused_and_drops_nothing(size: int) -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 8)).free()
        with pytest.raises(ConfigError, match="at least one block"):
            stamp.cache.resize(size)
        assert block_counts(stamp.cache)["cached"] == 2
        stamp.cache.resize(1)


def test_a_second_shrink_is_not_confused_by_sequences_long_gone() -> None:
    """Their rows may still name blocks that the pool does not have any more."""
    with opened(num_blocks=16, **ROOM) as stamp:
        seqs = [prefill(stamp, [number] * 6) for number in range(8)]
        stamp.cache.free(seqs)
        stamp.cache.clear_prefix()
        keep = prefill(stamp, T(1, 6))
        filler = prefill(stamp, T(50, 70))
        last = prefill(stamp, T(80, 86))
        filler.free()
        for size in (8, 4, 16, 5):
            stamp.cache.resize(size)
            stamp.cache.check()
            for seq in (keep, last):
                stamp.verify(seq)


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes_under_random_work_keep_every_byte(seed: int) -> None:
    generator = random.Random(seed)
    with opened(MIXED, num_blocks=24, max_capacity=64 * MIXED.block_stride) as stamp:
        seqs = []
        for turn in range(120):
            try:
                if generator.random() < 0.4:
                    stamp.cache.resize(generator.randint(1, 40))
                elif generator.random() < 0.5 or not seqs:
                    base = generator.choice([1, 100])
                    seqs.append(prefill(stamp, T(base, base + generator.randint(0, 20))))
                elif generator.random() < 0.5:
                    seqs.append(generator.choice(seqs).fork())
                else:
                    seqs.pop(generator.randrange(len(seqs))).free()
            except OutOfBlocks:
                if len(seqs) > 1:
                    seqs.pop().free()
            stamp.cache.check()
            for seq in seqs:
                mismatch = stamp.mismatch(seq)
                assert mismatch is None, f"seed={seed} turn={turn}: {mismatch}"
