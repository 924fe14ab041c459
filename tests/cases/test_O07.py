"""Open case O-07: fork with a sliding window."""

import itertools

import pytest

from kvpager import KVLayout, LayerSpec, open_cache
from tests.stamp import Stamp, T, block_counts, prefill

WINDOWED = KVLayout(layers=2, kv_heads=1, head_dim=4, dtype="float32", page_size=4, window=8)
MIXED = KVLayout.mixed([LayerSpec(1, 4), LayerSpec(1, 4, window=8)], dtype="float32", page_size=4)


@pytest.mark.parametrize("layout", [WINDOWED, MIXED], ids=["windowed", "mixed"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_forks_append_and_are_freed_in_any_order(layout: KVLayout, prefix_cache: bool, order: tuple[int, ...]) -> None:
    num_blocks = 16 * (1 + layout.num_groups) // 2 if layout is WINDOWED else 48
    with open_cache(layout, num_blocks=num_blocks, prefix_cache=prefix_cache, debug=True) as cache:
        stamp = Stamp(cache)
        start = block_counts(cache)
        s = prefill(stamp, T(1, 20))
        forks = [s.fork(), s.fork()]
        block_counts(cache)
        for step in range(20):
            for number, fork in enumerate(forks):
                fork.append(1000 * (number + 1) + step)
                with cache.step({fork: 1}) as opened:
                    stamp.fill(opened)
                stamp.verify(fork)
                assert 8 <= fork.length - int(cache.rows.first_page[-1, fork.row]) * 4
                block_counts(cache)
        stamp.verify(s)
        for at in order:
            [s, *forks][at].free()
            block_counts(cache)
        cache.clear_prefix()
        assert block_counts(cache) == start
