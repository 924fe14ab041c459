"""Full pages become findable: each gets its place in the prefix index, or gives way to one of the same content."""

from collections.abc import Sequence as List
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.prefix_match import page_labels
from kvpager.cache.sequence import Sequence
from kvpager.memory.page_table import UNMAPPED

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def publish(cache: "PagedCache", sequences: List[Sequence], pages: List[int]) -> None:
    """Makes each sequence's full pages up to ``pages`` findable; content that is findable already is shared."""
    index, rows, page_size = cache.index, cache.rows, cache.layout.page_size
    fresh: list[int] = []
    tenants: list[str] = []
    for seq, stop in zip(sequences, pages, strict=True):
        first = int(rows.published[seq.row])
        tokens, node = seq.tokens, seq._node
        assert tokens is not None
        assert node is not None
        snapshots = [table.snapshot() for table in seq.tables]
        for page, label in enumerate(page_labels(tokens, seq.scope, first, stop, page_size), first):
            if seq.away is not None:  # it may do without the page before, which somebody else has left here
                cache.evictable.got_child(node)
            node = index.open_child(node, label)
            for group, snapshot in enumerate(snapshots):
                block = int(snapshot[page])
                if block < 0:
                    if block != UNMAPPED:  # it lies below the device: where it belongs when it comes back
                        assert seq.away is not None
                        seq.away[group].copies[page].node = node
                    continue
                known = index.block(node, group)
                if known is None:
                    index.attach(node, group, block)
                    fresh.append(block)
                elif known != block:
                    _share_instead(cache, seq, group, page, block, known)
        seq._node = node
        rows.published[seq.row] = stop
        tenants += [seq.tenant] * (len(fresh) - len(tenants))
    cache.pool.publish(np.array(fresh, np.int32))
    cache.evictable.entered(fresh, tenants)
    for seq in sequences if cache.retention.is_used else ():
        cache.retention.grown(seq)
    if cache.lower is not None:
        cache.lower.published(fresh)


def _share_instead(cache: "PagedCache", seq: Sequence, group: int, page: int, block: int, known: int) -> None:
    """Another sequence published the same content meanwhile: page ``page`` maps its block, and ours goes."""
    cache.evictable.shared(cache.pool.retain(np.array([known], np.int32)))
    cache._repoint(seq, group, page, block, known)
    cache._deduplicated += 1
