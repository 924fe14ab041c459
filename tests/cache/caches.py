"""Small caches for the tests of this folder."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvpager import KVLayout, LayerSpec, PagedCache, open_cache
from tests.stamp import Stamp

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="bfloat16", page_size=4)
WINDOWED = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="bfloat16", page_size=4, window=8)
MIXED = KVLayout.mixed([LayerSpec(2, 4), LayerSpec(2, 4, window=8)], dtype="bfloat16", page_size=4)


@contextmanager
def opened(layout: KVLayout = LAYOUT, num_blocks: int = 16, **options: object) -> Iterator[Stamp]:
    """The stamp of a new cache, which is checked when the test is over."""
    with open_cache(layout, num_blocks=num_blocks, debug=True, **options) as cache:  # type: ignore[arg-type]
        yield Stamp(cache)
        cache.check()


def published_blocks(cache: PagedCache) -> dict[int, bytes]:
    """The bytes of every findable block."""
    return {int(block): cache.arena.blocks[block].tobytes() for block in cache.index.all_blocks()}  # type: ignore[attr-defined]
