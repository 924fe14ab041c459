"""Non-resident pages on their way back to blocks. A load may take as long as it likes: its sequence goes on meanwhile,
reads the pages where they lie, and maps them between two steps once they are there.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.arriving import let_go, take_held
from kvpager.cache.away import PagingCounts
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.sequence import Sequence
from kvpager.errors import PagesLost, TierError
from kvpager.tiers.load import Load
from kvpager.types import FaultKind, PageReason, TierKind

if TYPE_CHECKING:
    from kvpager.cache.lower_pages import LowerPages
    from kvpager.cache.paged_cache import PagedCache

_PATIENCE = 0.05  # seconds between two looks at the clock
_LONGEST_WAIT = 60.0  # seconds


@dataclass(slots=True)
class _Arrival:
    """``blocks`` are held until the load is over; ``copies``: what was read."""

    seq: Sequence
    group: int
    pages: list[int]
    copies: list[PageCopy]
    blocks: np.ndarray
    load: Load


class Arrivals:
    def __init__(self, cache: "PagedCache", lower: "LowerPages", copies: PageCopies, counts: PagingCounts) -> None:
        self._cache = cache
        self._lower = lower
        self._copies = copies
        self._counts = counts
        self._open: list[_Arrival] = []

    def begin(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Those of ``pages`` that lie below and are not coming yet begin to come. Raises OutOfBlocks."""
        away = None if seq.away is None else seq.away[group]
        if away is None:
            return
        coming = {page for each in self._open if each.seq is seq and each.group == group for page in each.pages}
        wanted = [page for page in away.below(pages) if page not in coming]
        if not wanted:
            return
        copies = [away.copies[page] for page in wanted]
        blocks = take_held(self._cache, len(wanted))
        load = self._lower.migration.load([copy.page for copy in copies], blocks.tolist())
        self._open.append(_Arrival(seq, group, wanted, copies, blocks, load))

    def wait(self, seq: Sequence) -> None:
        """Until nothing is on its way to ``seq``. Raises PagesLost for pages that did not come."""
        stop_at = self._lower.migration.now() + _LONGEST_WAIT
        mine = [each for each in self._open if each.seq is seq]
        self.settle()
        while any(each in self._open for each in mine) and self._lower.migration.now() < stop_at:
            self._lower.wait(_PATIENCE)
            self.settle()
        lost: dict[tuple[int, int], list[int]] = {}
        cause = TierError("the pages did not come up in time")
        for each in mine:
            for page, error in zip(each.pages, each.load.errors, strict=True):
                if error is not None or each in self._open:
                    lost.setdefault((seq.row, each.group), []).append(page)
                    cause = error or cause
        if lost:
            raise PagesLost(lost, cause)

    def settle(self) -> None:
        """Maps what has come, of sequences that no step reads."""
        for arrival in tuple(self._open):
            seq = arrival.seq
            if arrival.load.is_done and (seq.is_freed or not self._cache.rows.open_steps[seq.row]):
                self._open.remove(arrival)
                self._land(arrival)

    def _land(self, arrival: _Arrival) -> None:
        seq, group, load = arrival.seq, arrival.group, arrival.load
        came = [at for at, error in enumerate(load.errors) if error is None]
        for copy, error in zip(arrival.copies, load.errors, strict=True):
            copy.error = copy.error or error
        away = None if seq.is_freed or seq.away is None else seq.away[group]
        if away is not None:
            pages, copies = arrival.pages, arrival.copies
            below = set(away.below(np.array(pages, np.int64)))
            there = [at for at in came if away.copies.get(pages[at]) is copies[at] and pages[at] in below]
            if there:
                self._map(seq, group, [pages[at] for at in there], arrival.blocks[there])
        let_go(self._cache, arrival.blocks)
        if load.ended is not None:
            self._cache._faults.add(FaultKind.MAJOR, len(came), load.ended - load.begun)

    def _map(self, seq: Sequence, group: int, pages: list[int], blocks: np.ndarray) -> None:
        """The pages lie in ``blocks`` from now on, findable again if they were."""
        cache = self._cache
        assert seq.away is not None
        away, table, index, found = seq.away[group], seq.tables[group], cache.index, blocks.copy()
        published, full = (int(each) for each in (cache.rows.published[seq.row], cache.rows.reserved[seq.row]))
        full //= cache.layout.page_size
        fresh: list[int] = []
        for at, (page, block) in enumerate(zip(pages, blocks.tolist(), strict=True)):
            copy = away.copies[page]
            if copy.node is not None and page < published:
                known = index.block(copy.node, group)
                if known is None:
                    index.attach(copy.node, group, block, PageReason.ARRIVED)
                    fresh.append(block)
                else:
                    found[at] = known
            self._copies.let_go(copy)
            if not copy.is_private or page >= full:
                del away.copies[page]
                self._copies.disown(copy)
        cache.evictable.shared(cache.pool.retain(found))
        entered = np.array(fresh, np.int32)
        cache.pool.publish(entered)
        cache.evictable.entered(entered, [seq.tenant] * len(entered))
        which = np.array(pages, np.int64)
        table.move(which, found, TierKind.DEVICE)
        away.rest.clear(which)
        away.num_out -= len(pages)
        self._counts.back += len(pages)
        if pages[-1] == len(table) - 1:
            cache.rows.tail[group, seq.row] = found[-1]

    def held_blocks(self) -> list[int]:
        """Blocks that loads hold, one entry for each hold."""
        return [block for each in self._open for block in each.blocks.tolist()]
