"""Copy on write: a page that others map, or that can be found, is copied before it is written by hand; and what a table
says of a page that lies in another block from now on. Steps do the same for many sequences at once (cache/steps.py).
"""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.giving_back import give_back
from kvpager.cache.sequence import Sequence
from kvpager.cache.taking import take
from kvpager.types import FaultKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def make_writable(cache: "PagedCache", seq: Sequence, start: int, stop: int) -> None:
    """Copies the shared or published pages among positions ``start .. stop-1``, so that writing them is private."""
    page_size = cache.layout.page_size
    pages = range(start // page_size, cache.layout.num_pages(stop)) if stop > start else range(0)
    found = [
        (group, page, int(table.snapshot()[page]))
        for group, table in enumerate(seq.tables)
        for page in pages
        if cache.pool.is_write_protected(table.snapshot()[page : page + 1])[0]
    ]
    if not found:
        return
    fresh = take(cache, len(found))
    with cache._faults.handling(FaultKind.COPY_ON_WRITE, len(found)):
        cache.arena.copy(np.array([block for _, _, block in found], np.int32), fresh)
        if cache.page_log is not None:
            cache.page_log.copied([block for _, _, block in found], fresh.tolist())
        for (group, page, source), target in zip(found, fresh.tolist(), strict=True):
            repoint(cache, seq, group, page, source, target)


def repoint(cache: "PagedCache", seq: Sequence, group: int, page: int, source: int, target: int) -> None:
    """Page ``page`` lies in block ``target`` from now on; ``source`` has one mapping less."""
    table = seq.tables[group]
    if cache.rows.open_steps[seq.row]:
        table.detach()
    table.replace(page, target)
    if cache.rows.tail[group, seq.row] == source:
        cache.rows.tail[group, seq.row] = target
    give_back(cache, seq, np.array([source], np.int32))
