"""Every block of the pool at one moment, as columns: its state, who maps it, how often, and how full it is.

    block       0      1      2      3      4
    state     [ 1   |  1   |  2   |  0   |  1   ]    memory/block.py numbers them
    owner     [ 3   |  3   |  0   |  0   |  7   ]    a branch's number, the oldest one's where several map it; 0: nobody
    mappings  [ 1   |  2   |  0   |  0   |  1   ]    page-table entries that name it, 255 for more
    tokens    [ 32  |  32  |  32  |  0   |  5   ]    slots that hold a token, 255 for more

Costs O(blocks) in numpy and O(pages of the sequences); there is no loop over blocks. Only reads; knows no JSON, and not
who asked for a branch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence as CacheSequence

NOBODY = 0
MAX_OWNER = 65535
_MOST = 255
_NO_INTS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """Columns [blocks]: ``state``, ``mappings`` and ``tokens`` uint8, ``owner`` uint16."""

    state: np.ndarray
    owner: np.ndarray
    mappings: np.ndarray
    tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.state)

    def is_same(self, other: "BlockView") -> bool:
        return len(self) == len(other) and not len(self.changes_since(other))

    def changes_since(self, before: "BlockView") -> np.ndarray:
        """The blocks in which two views differ, ascending. REQUIRES: as many blocks."""
        differs = self.state != before.state
        differs |= self.owner != before.owner
        differs |= self.mappings != before.mappings
        differs |= self.tokens != before.tokens
        return np.flatnonzero(differs)


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Per sequence, in all layer groups: pages with a block, those of them that others map too, and pages ``below``."""

    blocks: list[int]
    shared: list[int]
    below: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """``pages``: of the sequences that were asked about, in the order given."""

    blocks: BlockView
    pages: PageCounts


class OwnerNumbers:
    """Small numbers for branches. A branch keeps its own as long as it lives, and it is not given out again soon."""

    def __init__(self) -> None:
        self._number_of_key: dict[int, int] = {}
        self._last = NOBODY

    def of(self, keys: Iterable[int]) -> dict[int, int]:
        """The numbers of all branches that live now; those of others are free again. NOBODY where there is none."""
        keys = list(keys)
        kept = {key: number for key in keys if (number := self._number_of_key.get(key, NOBODY))}
        taken = set(kept.values())
        for key in keys:
            if key not in kept and len(taken) < MAX_OWNER:
                kept[key] = self._take(taken)
        self._number_of_key = kept
        return {key: kept.get(key, NOBODY) for key in keys}

    def _take(self, taken: set[int]) -> int:
        while True:
            self._last = self._last % MAX_OWNER + 1
            if self._last not in taken:
                taken.add(self._last)
                return self._last


def view_pool(cache: "PagedCache", sequences: "Sequence[CacheSequence]", owners: Sequence[int]) -> PoolView:
    """The pool now. ``sequences``: those that have ``owners``, the oldest first; pages of others belong to nobody.

    REQUIRES: the thread that owns the cache, between two calls.
    """
    pool = cache.pool
    entries, lengths = _entries_of(sequences)
    number = np.repeat(np.array(owners, np.uint16), lengths)
    has_block = entries >= 0
    is_all_here = bool(has_block.all())  # the common case
    blocks = entries if is_all_here else entries[has_block]
    owner = np.zeros(pool.num_blocks, np.uint16)
    # Of values for the same block the last one stays: the oldest owner's.
    owner[blocks[::-1]] = (number if is_all_here else number[has_block])[::-1]
    view = BlockView(
        state=pool.states(),
        owner=owner,
        mappings=np.minimum(pool.refcount, _MOST).astype(np.uint8),
        tokens=_filled(cache),
    )
    is_shared = np.zeros(len(entries), np.bool_)
    is_shared[has_block] = (pool.refcount > 1)[blocks]
    shared = _per_sequence(is_shared, lengths)
    if is_all_here:
        return PoolView(view, PageCounts(lengths.tolist(), shared, [0] * len(lengths)))
    return PoolView(view, PageCounts(_per_sequence(has_block, lengths), shared, _per_sequence(entries < -1, lengths)))


class _Entries(NamedTuple):
    """All page-table entries, sequence by sequence, and how many each sequence has."""

    entries: np.ndarray
    lengths: np.ndarray


def _entries_of(sequences: "Sequence[CacheSequence]") -> _Entries:
    tables = [table for seq in sequences for table in seq.tables]
    if not tables:
        return _Entries(_NO_INTS, np.zeros(len(sequences), np.int64))
    sizes = list(map(len, tables))
    entries = np.concatenate([table.snapshot()[:size] for table, size in zip(tables, sizes, strict=True)])
    return _Entries(entries.astype(np.int64), np.array(sizes).reshape(len(sequences), -1).sum(axis=1))


def _per_sequence(chosen: np.ndarray, lengths: np.ndarray) -> list[int]:
    """How many are chosen of each sequence's entries."""
    running = np.concatenate([[0], np.cumsum(chosen)])
    stops = np.cumsum(lengths)
    counts: list[int] = (running[stops] - running[stops - lengths]).tolist()
    return counts


def _filled(cache: "PagedCache") -> np.ndarray:
    """Slots of each block that hold a token. Findable pages are full, and so are all pages before the last written one;
    one that several sequences have begun is as full as the furthest of them has it."""
    pool, page_size = cache.pool, cache.layout.page_size
    tokens = np.where((pool.refcount > 0) | pool.indexed, min(page_size, _MOST), 0).astype(np.uint8)
    blocks, fills = _begun(cache)
    found, place, times = np.unique(blocks, return_inverse=True, return_counts=True)
    fill = np.zeros(len(found), np.int64)
    np.maximum.at(fill, place, fills)
    is_begun = (times == pool.refcount[found]) & ~pool.indexed[found]  # for nobody it is a full page
    tokens[found[is_begun]] = np.minimum(fill[is_begun], _MOST)
    return tokens


class _Begun(NamedTuple):
    """Blocks of pages that are not full, once for each sequence that maps them, and how many slots of each are."""

    blocks: np.ndarray
    fills: np.ndarray


def _begun(cache: "PagedCache") -> _Begun:
    rows, page_size = cache.rows, cache.layout.page_size
    live = np.fromiter(cache.sequences, np.int64, len(cache.sequences))
    is_settled = rows.committed[live] == rows.reserved[live]  # no step is writing it
    filled = rows.committed[live] % page_size
    tailed = live[is_settled & (filled > 0)]
    blocks, fills = [rows.tail[:, tailed].ravel()], [np.tile(rows.committed[tailed] % page_size, len(rows.tail))]
    for row in live[~is_settled].tolist():
        page = int(rows.committed[row]) // page_size
        for table in cache.sequences[row].tables:
            entries = table.snapshot()[page : len(table)]
            fill = np.zeros(len(entries), np.int64)
            fill[:1] = rows.committed[row] % page_size
            blocks.append(entries[entries >= 0])
            fills.append(fill[entries >= 0])
    return _Begun(np.concatenate(blocks).astype(np.int64), np.concatenate(fills))
