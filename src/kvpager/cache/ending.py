"""The end of a sequence: all its pages go back, the last page first, so that leaves age before roots.

A plain one ends in one native call, which does the same. Plain: one layer group without a window, no page below the
device, no open step, no run of blocks, nothing retained, nobody who listens, and pages in LRU order.
"""

from typing import TYPE_CHECKING

from kvpager.cache.giving_back import give_back
from kvpager.cache.sequence import Sequence
from kvpager.cache.sequence_rows import NO_ROW

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


class Ending:
    """Of the sequences of one cache."""

    __slots__ = ("_cache", "_evictable", "_index", "_is_plain", "_rows")

    def __init__(self, cache: "PagedCache") -> None:
        self._cache = cache
        self._rows = cache.rows
        self._index = cache.index
        self._evictable = cache.evictable
        self._is_plain = cache.layout.num_groups == 1 and not cache.has_windows and not cache.pool.has_poison

    def end(self, seq: Sequence) -> bool:
        """False, with nothing changed, where the sequence or the cache is not plain. REQUIRES: it is usable."""
        cache, evictable = self._cache, self._evictable
        lru = evictable.lru
        if lru is None or not self._is_plain or seq.away is not None or cache.runs is not None:
            return False
        if evictable.retains is not None or evictable.uses is not None or cache.retention.is_used:
            return False
        books = cache.books.native()
        if books is None:
            return False
        row = seq.row
        if books.end(row, seq.tables[0], seq._root, self._index, lru) < 0:
            return False
        seq.is_freed = True
        seq.tables = ()
        seq.row = NO_ROW
        self._rows.ended(row)
        del cache.sequences[row]
        return True

    def end_part_by_part(self, seq: Sequence) -> None:
        """The same for any sequence. REQUIRES: it is usable."""
        cache = self._cache
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
