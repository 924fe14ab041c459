"""Open case O-07: fork with a sliding window."""

import itertools

import pytest

from kvpager import KVLayout, LayerSpec, Sequence, open_cache
from kvpager.cache.step import Step
from kvpager.tiers.rows import layer_view
from tests.stamp import Stamp, T, block_counts, prefill

WINDOWED = KVLayout(layers=2, kv_heads=1, head_dim=4, dtype="float32", page_size=4, window=8)
MIXED = KVLayout.mixed([LayerSpec(1, 4), LayerSpec(1, 4, window=8)], dtype="float32", page_size=4)


def rows_in_window(stamp: Stamp, step: Step) -> list[bytes]:
    """The last 8 rows that the windowed layer of a one-sequence step sees, the new token's included."""
    stop, layer = int(step.batch.stops[0]), 1
    place = stamp.layout.places[layer]
    view = layer_view(stamp.cache.arena, stamp.layout, layer)
    table = step.batch.tables[place.group][0]
    return [
        view[int(table[position // 4]), :, half, position % 4].numpy().tobytes()
        for position in range(stop - 8, stop)
        for half in range(2)
    ]


def own_rows(stamp: Stamp, seq: Sequence) -> list[bytes]:
    tokens = list(seq.tokens)
    return [
        stamp.row(1, half, tokens[: position + 1]) for position in range(len(tokens) - 8, len(tokens)) for half in "KV"
    ]


@pytest.mark.parametrize("layout", [WINDOWED, MIXED], ids=["windowed", "mixed"])
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_forks_append_and_are_freed_in_any_order(layout: KVLayout, prefix_cache: bool, order: tuple[int, ...]) -> None:
    num_blocks = 16 if layout is WINDOWED else 48  # full layers keep every page: three times 40 tokens need more
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
                    assert rows_in_window(stamp, opened) == own_rows(stamp, fork)
                stamp.verify(fork)
                block_counts(cache)
        stamp.verify(s)
        for at in order:
            [s, *forks][at].free()
            block_counts(cache)
        cache.clear_prefix()
        assert block_counts(cache) == start
