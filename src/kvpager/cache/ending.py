"""The end of a sequence: all its pages go back, the last page first, so that leaves age before roots.

A plain one ends in one native call (cache/books.py), which does the same. Plain: one layer group without a window, no
page below the device, no open step, no run of blocks, no poison, nothing retained, nobody who listens, and pages in LRU
order. Its row keeps its table, empty, for the sequence that has the row next (cache/sequence_rows.py).
"""

from typing import TYPE_CHECKING

from kvpager.cache.giving_back import give_back
from kvpager.cache.sequence import Sequence
from kvpager.cache.sequence_rows import NO_ROW

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def can_end_natively(cache: "PagedCache") -> bool:
    """What of "plain" never changes in a cache; the native call looks at the rest."""
    return cache.layout.num_groups == 1 and not cache.has_windows and not cache.pool.has_poison and cache.runs is None


def end_part_by_part(cache: "PagedCache", seq: Sequence) -> None:
    """What ``cache.books.end`` does, for any sequence. REQUIRES: it is usable."""
    for group, table in enumerate(seq.tables):
        if seq.away is not None:
            cache.paging.partings.unmapped(seq, group, 0, len(table))
        has_gaps = cache.has_windows or seq.away is not None
        blocks = table.mapped_blocks() if has_gaps else table.entries[: len(table)]
        give_back(cache, seq, blocks[::-1])
    if seq._root is not None:
        cache.index.leave_root(seq._root)
    seq.is_freed = True
    seq.tables, seq.away = (), None
    del cache.sequences[seq.row]
    if cache.runs is not None:
        cache.runs.release(seq.row)
    cache.rows.leave(seq.row)
    if cache.rows.open_steps[seq.row] == 0:
        cache.rows.give_back(seq.row)
    seq.row = NO_ROW
