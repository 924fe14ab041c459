"""Sequences of which only a part is on the device: what their pages hold, wherever they lie."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kvpager import HostTier, KVLayout, PagedCache
from kvpager.cache.sequence import Sequence as KVSequence
from kvpager.tiers.host import HostStore
from kvpager.types import TierKind
from tests.cache.caches import LAYOUT, opened
from tests.stamp import Stamp


@contextmanager
def over_host(layout: KVLayout = LAYOUT, num_blocks: int = 8, slots: int = 64, **options: object) -> Iterator[Stamp]:
    """A small device over host memory."""
    with opened(layout, num_blocks, tiers=[HostTier(pages=slots)], **options) as stamp:
        yield stamp


def open_limited(
    stamp: Stamp, tokens: Sequence[int], limit: int | None, chunk: int, is_settled: bool = False, **options: object
) -> KVSequence:
    """A sequence that computes its prompt in chunks, with so many pages on the device."""
    seq = stamp.cache.sequence(tokens, **options)  # type: ignore[arg-type]
    seq.resident_limit = limit
    advance(stamp, seq, chunk, is_settled)
    return seq


def advance(stamp: Stamp, seq: KVSequence, chunk: int = 4, is_settled: bool = False) -> None:
    """Computes all tokens that the sequence knows, in steps of ``chunk``.

    ``is_settled``: each step waits until all copies have ended. Without it, which of the pages go out depends on which
    copies were fastest.
    """
    while seq.length < seq.num_tokens:
        if is_settled:
            assert stamp.cache.lower is not None
            stamp.cache.lower.settle(60)
        with stamp.cache.step({seq: min(chunk, seq.num_tokens - seq.length)}) as step:
            stamp.fill(step)


def write_down(cache: PagedCache) -> None:
    """Everything that can be found is in the host tier too."""
    assert cache.lower is not None
    while dirty := [block for block in cache.index.all_blocks().tolist() if not cache.lower.is_clean(block)]:
        cache.lower.write_down(dirty)
        cache.lower.settle(60)


def host_of(cache: PagedCache) -> HostStore:
    assert cache.lower is not None
    return next(tier for tier in cache.lower.migration.tiers if isinstance(tier, HostStore))


def page_bytes(cache: PagedCache, seq: KVSequence, group: int, page: int) -> np.ndarray:
    """uint8 [block_stride] of a page, where it lies."""
    where = seq.tables[group].translate(page * cache.layout.page_size)
    if where.tier is TierKind.DEVICE:
        return cache.arena.blocks[where.block]  # type: ignore[attr-defined,no-any-return]
    assert where.tier is TierKind.HOST
    return host_of(cache)._arena.blocks[where.block]


def verify(stamp: Stamp, seq: KVSequence) -> int:
    """Compares every row of pages that are not gone; returns how many pages that were."""
    cache, layout, seen = stamp.cache, stamp.layout, 0
    assert seq.tokens is not None
    for layer, place in enumerate(layout.places):
        shape = layout.groups[place.group]
        size = shape.head_dim * layout.item_bytes
        expected = {half: stamp._rows(layer, half, seq.tokens, 0, seq.length) for half in "KV"}
        for page in range(layout.num_pages(seq.length)):
            if not seq.tables[place.group].translate(page * layout.page_size).is_mapped:
                continue
            block, seen = page_bytes(cache, seq, place.group, page), seen + 1
            for number, half in enumerate("KV"):
                for slot in range(min(layout.page_size, seq.length - page * layout.page_size)):
                    row = expected[half][page * layout.page_size + slot].reshape(shape.kv_heads, size)
                    for head in range(shape.kv_heads):
                        at = layout.slot_offset(place.group, place.index, head, number, slot)
                        assert block[at : at + size].tobytes() == row[head].tobytes(), (layer, half, page, slot)
    return seen // layout.layers
