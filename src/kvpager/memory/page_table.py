"""Where each page of one sequence lies. Two small arrays; knows no pool, no tokens and no policy.

    page        0        1        2        3
    entry    [  17   |   -1    |   4    |  -11  ]    int32: a block; UNMAPPED; or -2 - slot of a lower tier (here 9)
    tier     [DEVICE |  NONE   | DEVICE |  HOST ]    uint8, TierKind; kept from the first page below the device on

So whoever looks for blocks takes what is not negative. 4 bytes a page, 5 where some lie below the device: 1,048,576
tokens in 16-token pages are 65,536 pages, 256 or 320 KiB. Pages never mapped, and pages given back because a window
moved past them, are NONE.

A *snapshot* is the block array as it stands; an open step reads its first pages. Mapping pages behind it changes
nothing the step reads, so a snapshot costs O(1). Whoever must change an entry a step may read calls ``detach`` first,
and the snapshot keeps the old array.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpager.errors import InvariantError
from kvpager.types import TierKind

UNMAPPED = -1  # in the block array only; questions answer with Location(tier=NONE)
_NONE, _DEVICE = int(TierKind.NONE), int(TierKind.DEVICE)  # plain: numpy compares with them several times faster


_EMPTY = np.full(4096, UNMAPPED, np.int32)  # a copy of a part of it is several times faster to have than a new array
_MOST_EMPTY = len(_EMPTY)


def entry_of_slot(slots: np.ndarray) -> np.ndarray:
    """int32: what the table says of pages that lie in these slots of a lower tier. Its own inverse."""
    return (-2 - slots).astype(np.int32)


def _device_or_none(entries: np.ndarray) -> np.ndarray:
    return np.where(entries == UNMAPPED, np.uint8(_NONE), np.uint8(_DEVICE))


@dataclass(frozen=True, slots=True)
class Location:
    """``block`` of ``tier``, a slot where that is a lower one, and the ``offset`` inside it: a slot of the block for
    token positions, bytes for addresses."""

    tier: TierKind
    block: int
    offset: int

    @property
    def is_mapped(self) -> bool:
        return self.tier is not TierKind.NONE


class PageTable:
    """A growing, sparse map page -> block. ``page_size`` in tokens."""

    __slots__ = ("_num_pages", "_tiers", "entries", "page_size")

    def __init__(self, page_size: int, capacity: int = 8) -> None:
        self.page_size = page_size
        self.entries = _EMPTY[:capacity].copy() if capacity <= _MOST_EMPTY else np.full(capacity, UNMAPPED, np.int32)
        self._tiers: np.ndarray | None = None  # as long as every page that is mapped lies on the device
        self._num_pages = 0

    def __len__(self) -> int:
        """Pages up to and including the last one ever mapped and not cut off."""
        return self._num_pages

    @property
    def nbytes(self) -> int:
        return self.entries.nbytes + (0 if self._tiers is None else self._tiers.nbytes)

    def snapshot(self) -> np.ndarray:
        """The entries, int32, at least len(self) long; those below 0 name no block."""
        return self.entries

    def detach(self) -> None:
        """From now on changes are made to a copy; earlier snapshots keep what they saw."""
        self.entries = self.entries.copy()

    def map(self, page: int, blocks: np.ndarray, tier: TierKind = TierKind.DEVICE) -> None:
        """Maps pages ``page .. page+len(blocks)-1``, which must be unmapped, to blocks or slots of ``tier``."""
        stop = page + len(blocks)
        if stop > len(self.entries):
            self._grow(stop)
        if self._num_pages > page and (self.entries[page : min(stop, self._num_pages)] != UNMAPPED).any():
            raise InvariantError(f"a page in {page}..{stop - 1} is mapped already")
        self.entries[page:stop] = blocks if tier <= TierKind.DEVICE else entry_of_slot(blocks)
        self._lie_in(slice(page, stop), tier)
        self._num_pages = max(self._num_pages, stop)

    def map_pages(self, pages: np.ndarray, places: np.ndarray, tier: TierKind) -> None:
        """Maps ``pages`` (ascending), which must be unmapped, to these blocks or slots of ``tier``."""
        if len(pages) == 0:
            return
        stop = int(pages[-1]) + 1
        if stop > len(self.entries):
            self._grow(stop)
        if (self.entries[pages[pages < self._num_pages]] != UNMAPPED).any():
            raise InvariantError(f"a page in {pages[0]}..{stop - 1} is mapped already")
        self.entries[pages] = places if tier is TierKind.DEVICE else entry_of_slot(places)
        self._lie_in(pages, tier)
        self._num_pages = max(self._num_pages, stop)

    def map_one(self, page: int, block: int) -> None:
        """Maps one page behind the end to a device block: the common case of a decode step."""
        if page >= len(self.entries):
            self._grow(page + 1)
        self.entries[page] = block
        if self._tiers is not None:
            self._tiers[page] = _DEVICE
        self._num_pages = page + 1

    def replace(self, page: int, block: int) -> None:
        """Points a mapped page at another device block. REQUIRES: no snapshot in use, or detached."""
        if page >= self._num_pages or self.entries[page] == UNMAPPED:
            raise InvariantError(f"page {page} is not mapped")
        self.entries[page] = block
        self._lie_in(page, TierKind.DEVICE)

    def move(self, pages: np.ndarray, places: np.ndarray, tier: TierKind) -> np.ndarray:
        """Mapped ``pages`` lie in these blocks or slots of ``tier`` from now on. Returns their entries until now.

        REQUIRES: no snapshot in use, or detached.
        """
        before = self.entries[pages]
        if len(pages) and (pages[-1] >= self._num_pages or (before == UNMAPPED).any()):
            raise InvariantError("a page that is not mapped can't move to another tier")
        self.entries[pages] = places if tier is TierKind.DEVICE else entry_of_slot(places)
        self._lie_in(pages, tier)
        return before

    def unmap_pages(self, pages: np.ndarray) -> np.ndarray:
        """Unmaps ``pages``, none of them the last one; returns the blocks of those that have one, in the order given.

        REQUIRES: no snapshot in use, or detached.
        """
        entries = self.entries[pages]
        self.entries[pages] = UNMAPPED
        if self._tiers is not None:
            self._tiers[pages] = _NONE
        return entries[entries >= 0]

    def unmap(self, start: int, stop: int) -> np.ndarray:
        """Unmaps pages ``start .. stop-1``, returns their blocks in page order, shortens a table they end."""
        stop = min(stop, self._num_pages)
        if start >= stop:
            return np.empty(0, np.int32)
        entries = self.entries[start:stop]
        blocks = entries[entries >= 0]
        entries[:] = UNMAPPED
        if self._tiers is not None:
            self._tiers[start:stop] = _NONE
        if stop == self._num_pages:
            self._num_pages = start
        return blocks

    def mapped_blocks(self) -> np.ndarray:
        """The blocks of all pages that have one, in page order (a copy)."""
        entries = self.entries[: self._num_pages]
        return entries[entries >= 0]

    def tiers(self) -> np.ndarray:
        """uint8 [len(self)]: the tier of each page, NONE where it is not mapped."""
        if self._tiers is None:
            return _device_or_none(self.entries[: self._num_pages])
        return self._tiers[: self._num_pages]

    def copy(self) -> "PageTable":
        twin = PageTable(self.page_size, 0)
        twin.entries, twin._tiers = self.entries.copy(), None if self._tiers is None else self._tiers.copy()
        twin._num_pages = self._num_pages
        return twin

    def renumber(self, new_ids: np.ndarray) -> None:
        """Replaces every mapped device block b by ``new_ids[b]`` (the pool moved blocks)."""
        entries = self.entries[: self._num_pages]
        mapped = entries >= 0
        entries[mapped] = new_ids[entries[mapped]]

    def translate(self, position: int) -> Location:
        """Tier, block and slot of a token position; tier NONE where nothing is mapped (touching it is a fault)."""
        page, slot = divmod(position, self.page_size)
        return self._locate(page, slot)

    def translate_address(self, address: int, page_bytes: int) -> Location:
        """Tier, block and byte offset of a virtual byte address, where page p covers ``page_bytes`` bytes from
        p * page_bytes on (one group's block without alignment)."""
        page, offset = divmod(address, page_bytes)
        return self._locate(page, offset)

    def _locate(self, page: int, offset: int) -> Location:
        if page < 0:
            raise InvariantError(f"position or address before the start of the sequence (page {page})")
        if page >= self._num_pages or self.entries[page] == UNMAPPED:
            return Location(TierKind.NONE, 0, offset)
        entry = int(self.entries[page])
        tier = TierKind.DEVICE if self._tiers is None else TierKind(int(self._tiers[page]))
        return Location(tier, entry if entry >= 0 else -2 - entry, offset)

    def _grow(self, pages: int) -> None:
        more = max(pages, 2 * len(self.entries), 8) - len(self.entries)
        self.entries = np.concatenate([self.entries, np.full(more, UNMAPPED, np.int32)])
        if self._tiers is not None:
            self._tiers = np.concatenate([self._tiers, np.zeros(more, np.uint8)])

    def _lie_in(self, pages: int | slice | np.ndarray, tier: TierKind) -> None:
        """The tier of ``pages``, whose entries say so already."""
        if self._tiers is None:
            if tier is TierKind.DEVICE:
                return
            self._tiers = _device_or_none(self.entries)
        self._tiers[pages] = int(tier)

    @property
    def num_mapped(self) -> int:
        """Pages that have a block."""
        return int(np.count_nonzero(self.entries[: self._num_pages] >= 0))

    def check(self, num_blocks: int) -> None:
        """Raises InvariantError unless every entry names a block of the pool and no block stands twice (I6)."""
        check_tables([self], num_blocks)


def check_tables(tables: Sequence[PageTable], num_blocks: int) -> np.ndarray:
    """Checks each table, all at once. Returns the blocks of all their pages that have one, table by table.

    Raises InvariantError unless every entry names a block of the pool and no block stands twice in a table (I6).
    """
    entries = np.concatenate([np.empty(0, np.int32), *(table.entries[: table._num_pages] for table in tables)])
    tiers = np.concatenate([np.empty(0, np.uint8), *(table.tiers() for table in tables)])
    has_block = entries >= 0
    wrong = (tiers == _NONE) != (entries == UNMAPPED)
    wrong |= (tiers == _DEVICE) != has_block
    if wrong.any():
        raise InvariantError("block and tier of a page disagree")
    mapped = entries[has_block]
    if mapped.max(initial=-1) >= num_blocks:
        raise InvariantError("a page table names a block outside the pool")
    owner = np.repeat(np.arange(len(tables)), [table._num_pages for table in tables])[has_block]
    places = np.sort(owner * num_blocks + mapped)
    if (places[1:] == places[:-1]).any():
        raise InvariantError("a block stands twice in one page table")
    return mapped
