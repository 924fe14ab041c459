"""Pages of running sequences on their way down: which may go, which a tier has already, and how a block is given back.

    candidates    full pages that nothing needs on the device, the first to go first
    ready         those of them that a tier has; the others begin to be written
    move_out      a tier holds the copy, the table says so, and the block is free at once, or others' alone

Decides when of nothing; moves no bytes itself.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.away import PagingCounts, away_of
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.sequence import Sequence
from kvpager.cache.working_set import order
from kvpager.checksum import row_checksums
from kvpager.memory.page_table import UNMAPPED
from kvpager.prefix.hashing import block_key
from kvpager.tiers.tier import Page
from kvpager.types import PageReason, TierKind

if TYPE_CHECKING:
    from kvpager.cache.lower_pages import LowerPages
    from kvpager.cache.paged_cache import PagedCache


class Departures:
    def __init__(self, cache: "PagedCache", lower: "LowerPages", copies: PageCopies, counts: PagingCounts) -> None:
        self._cache = cache
        self._lower = lower
        self._copies = copies
        self._counts = counts

    def candidates(self, seq: Sequence, group: int) -> np.ndarray:
        """Pages that may go, the first to go first: pinned ones after all others."""
        rows, row, page_size = self._cache.rows, seq.row, self._cache.layout.page_size
        first, full = int(rows.first_page[group, row]), int(rows.reserved[row]) // page_size
        entries = seq.tables[group].snapshot()[first:full]
        pages = np.flatnonzero(entries >= 0) + first
        pages = pages[pages != rows.published[row] - 1]  # its node is where the sequence stands
        blocks = seq.tables[group].snapshot()[pages]
        use = None if seq.attention is None else seq.attention.page_use(group)
        is_pinned = self._cache.pool.kept[blocks] & self._cache.pool.indexed[blocks]
        found = order(pages[~is_pinned], len(seq.tables[group]), use)
        if is_pinned.any():
            found = np.concatenate([found, order(pages[is_pinned], len(seq.tables[group]), use)])
        return found

    def unpinned(self, seq: Sequence, group: int) -> np.ndarray:
        """Those of them that no retention pins."""
        pages = self.candidates(seq, group)
        return pages[~self._cache.pool.kept[seq.tables[group].snapshot()[pages]]]

    def ready(self, seq: Sequence, group: int, wanted: int) -> dict[int, PageCopy]:
        """Of the ``wanted`` pages that should go first those that a tier has; the others are being written now."""
        return self.clean_or_written(seq, group, self.candidates(seq, group)[:wanted])

    def clean_or_written(self, seq: Sequence, group: int, pages: np.ndarray) -> dict[int, PageCopy]:
        """Those of ``pages`` that a tier has; the others are being written now."""
        clean = self.clean(seq, group, pages)
        if len(clean) < len(pages):
            self._write(seq, group, np.setdiff1d(pages, list(clean)))
        return clean

    def clean(self, seq: Sequence, group: int, pages: np.ndarray) -> dict[int, PageCopy]:
        """Those of ``pages`` that a tier has and nothing holds."""
        blocks = seq.tables[group].snapshot()[pages]
        pinned = self._cache.pool.pins[blocks] > 0
        found = {}
        for page, block, is_held in zip(pages.tolist(), blocks.tolist(), pinned.tolist(), strict=True):
            copy = None if is_held else self._copy(seq, group, page, block)
            if copy is not None and self._copies.is_there(copy):
                found[page] = copy
        return found

    def _copy(self, seq: Sequence, group: int, page: int, block: int) -> PageCopy | None:
        """What the tiers would have of a resident page; None of one that has no key."""
        index = self._cache.index
        if not self._cache.pool.indexed[block]:
            return None if seq.away is None else seq.away[group].copies.get(page)
        node = index.node_of_block(block)
        page_id = Page(block_key(index.key(node), group), block_key(index.key(index.parent(node)), group), group)
        return PageCopy(page_id, is_private=False, node=node)

    def _write(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        away = away_of(self._cache, seq)[group]
        blocks = seq.tables[group].snapshot()[pages].tolist()
        wanted = []
        for page, block in zip(pages.tolist(), blocks, strict=True):
            copy = self._copy(seq, group, page, block)
            if copy is None:
                copy = away.copies[page] = self._copies.private(group)
            wanted.append((copy.page, block))
        self._lower.migration.demote(wanted, leaving=True)

    def move_out(self, seq: Sequence, group: int, clean: Mapping[int, PageCopy], at_most: int) -> int:
        """The first of the ``clean`` pages whose copies can be held."""
        table, away = seq.tables[group], away_of(self._cache, seq)[group]
        held = islice((page for page, copy in clean.items() if self._copies.use(copy)), at_most)
        copies = {page: clean[page] for page in sorted(held)}
        out = np.fromiter(copies, np.int64, len(copies))
        blocks = table.snapshot()[out]
        for page in copies.keys() & away.copies.keys():
            if away.copies[page] is not copies[page]:  # it had a private key before it was published
                self._copies.disown(away.copies[page])
        self.lay_below(seq, group, copies)
        self._give_back(blocks)
        self._counts.out += len(out)
        if len(out) and out[-1] == len(table) - 1:
            self._cache.rows.tail[group, seq.row] = 0
        return len(out)

    def lay_below(self, seq: Sequence, group: int, copies: Mapping[int, PageCopy]) -> None:
        """Pages of ``seq`` (ascending) lie in their copies from now on, which it uses already. Of those that have a
        block, that is still theirs."""
        if not copies:
            return
        away, table = away_of(self._cache, seq)[group], seq.tables[group]
        pages = np.fromiter(copies, np.int64, len(copies))
        slots = np.array([-1 if copy.slot is None else copy.slot.index for copy in copies.values()], np.int32)
        kinds = np.array([TierKind.NONE if copy.tier is None else copy.tier.kind for copy in copies.values()])
        away.reach(int(pages[-1]) + 1)
        for tier in self._copies.tiers:
            which, there = pages[kinds == tier.kind], slots[kinds == tier.kind]
            if len(which) == 0:
                continue
            addresses = tier.addresses(there)
            is_new = which[-1] >= len(table) or table.snapshot()[which[0]] == UNMAPPED
            sums = None if is_new or addresses is not None else self._part_checksums(group, table.snapshot()[which])
            away.rest.put(which, tier.kind, there, addresses, sums)
            if is_new:
                table.map_pages(which, there, tier.kind)
            else:
                table.move(which, there, tier.kind)
        away.copies.update(copies)
        self._cache._reclaimer.has_made_gaps = True
        away.num_out += len(pages)

    def _part_checksums(self, group: int, blocks: np.ndarray) -> np.ndarray | None:
        """uint64 [blocks, layers]: of each layer's part; None where no processor of the host can read a block."""
        memory = getattr(self._cache.arena, "blocks", None)
        if not isinstance(memory, np.ndarray):
            return None
        shape, layout = self._cache.layout.groups[group], self._cache.layout
        layers, size = len(shape.layers), shape.bytes_per_token(layout.item_bytes) * layout.page_size
        return np.stack([row_checksums(memory[block, :size].reshape(layers, -1)) for block in blocks.tolist()])

    def _give_back(self, blocks: np.ndarray) -> None:
        """One mapping less; blocks that nobody else maps leave the prefix index, and are free."""
        cache = self._cache
        lone = blocks[(cache.pool.refcount[blocks] == 1) & cache.pool.indexed[blocks]]
        if len(lone):
            num_pinned = int(np.count_nonzero(cache.pool.kept[lone]))
            cache.evictable.left(lone)
            for block in lone.tolist():
                node = cache.index.node_of_block(block)
                left = cache.index.detach(block, PageReason.PAGED_OUT)
                if left != node:
                    cache.evictable.lost_child(left)
            cache.pool.unpublish(lone)
            cache._reclaimer.pins_yielded += num_pinned
        cache.pool.release(blocks)
