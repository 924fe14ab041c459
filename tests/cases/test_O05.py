"""Open case O-05: any page order, any append length."""

import itertools

import numpy as np
import pytest

from kvpager import KVLayout, open_cache
from kvpager.attention import backends, select
from tests.attention.bench import Bench, fill_arena
from tests.stamp import Stamp, T, block_counts

LENGTHS = [1, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33]
NAMES = [each.name for each in backends() if each.is_available]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_interleaved_pages_answer_like_fp64_on_the_gathered_rows(name: str, group: int, dtype: str) -> None:
    layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype=dtype, page_size=4)
    with open_cache(layout, num_blocks=64) as cache:
        fill_arena(cache, 0xFF)
        bench = Bench(cache, select(layout, name), 2 * group)
        seqs = [cache.sequence(T(1000 * at, 1000 * at + 60)) for at in range(8)]
        for _ in range(9):  # one token each in turn: their pages interleave
            for seq in seqs:
                bench.step({seq: 1})
        cache.free([seqs[1], seqs[3], seqs[5], seqs[7]])
        block_counts(cache)
        rest = [seqs[0], seqs[2], seqs[4], seqs[6]]
        assert all((np.diff(seq.tables[0].mapped_blocks()) != 1).any() for seq in rest)
        for seq, count in zip(itertools.cycle(rest), (1, 2, 3, 5, 9), strict=False):
            bench.step({seq: count})
        bench.step(dict(zip(rest, (9, 5, 3, 2), strict=True)))
        bench.step(dict.fromkeys(rest, 1))
        cache.check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_length_among_scattered_free_blocks(name: str, group: int, dtype: str) -> None:
    layout = KVLayout(layers=1, kv_heads=2, head_dim=8, dtype=dtype, page_size=4)
    for length in LENGTHS:
        with open_cache(layout, num_blocks=64) as cache:
            crowd = [cache.sequence([7, at]) for at in range(64)]
            with cache.step(dict.fromkeys(crowd, 2)):
                pass
            order = np.random.default_rng(length).permutation(64)[:40]
            cache.free([crowd[at] for at in order])  # the free list is in this order now
            fill_arena(cache, 0xFF)
            bench = Bench(cache, select(layout, name), 2 * group)
            seq = cache.sequence(T(1, length + 12))
            bench.step({seq: length})
            assert length < 31 or (np.diff(seq.tables[0].mapped_blocks()) < 0).any(), "the order is no order"
            bench.step({seq: 1})
            bench.step({seq: 11})


@pytest.mark.parametrize("name", NAMES)
def test_one_batch_mixes_sequences_with_and_without_a_hit(name: str) -> None:
    layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=4)
    with open_cache(layout, num_blocks=64) as cache:
        fill_arena(cache, 0xFF)
        bench = Bench(cache, select(layout, name), 4)
        bench.step({cache.sequence(T(1, 33)): 33})
        batch = [cache.sequence(prompt) for prompt in (T(500, 512), T(1, 40), [1, 2, 3], T(1, 20), T(900, 900))]
        assert [seq.prefix_tokens for seq in batch] == [0, 32, 2, 19, 0]
        bench.step({seq: seq.num_tokens - seq.length for seq in batch})
        for seq in batch:
            seq.append(T(700, 704))
        bench.step(dict.fromkeys(batch, 1))
        bench.step(dict.fromkeys(batch, 4))
        cache.check()


def test_the_rows_themselves_are_the_stamped_ones() -> None:
    layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_size=4)
    with open_cache(layout, num_blocks=64) as cache:
        fill_arena(cache, 0xFF)
        stamp = Stamp(cache)
        seqs = [cache.sequence(T(1000 * at, 1000 * at + 40)) for at in range(8)]
        for _ in range(9):
            for seq in seqs:
                with cache.step({seq: 1}) as step:
                    stamp.fill(step)
        cache.free(seqs[1::2])
        for seq, count in zip(seqs[::2], (2, 3, 5, 9), strict=True):
            with cache.step({seq: count}) as step:
                stamp.fill(step)
        for seq in seqs[::2]:
            stamp.verify(seq)
        block_counts(cache)
