"""The pages of one sequence that are not on the device: those that lie below it, and those given back for good.

    page        0        1        2        3        4
    table    [  17   |  -1    |   4    |  -11   |   9   ]
    copies                       known     used             known: a tier has, or is getting, a private copy
    gone              yes

One ``AwayPages`` a layer group. It keeps count and lets go; which pages go, and when, is decided elsewhere.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.page_copies import PageCopy
from kvpager.memory.page_table import PageTable

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence

Parting = list[tuple[PageCopy, bool]]  # copies that a sequence gives up, and whether its page lay there


@dataclass(slots=True)
class AwayPages:
    """``copies`` of the pages that lie below the device, and of resident ones that have a private key already."""

    rest: NonResidentPages
    copies: dict[int, PageCopy] = field(default_factory=dict)
    gone: np.ndarray = field(default_factory=lambda: np.zeros(0, np.bool_))
    num_out: int = 0
    num_gone: int = 0
    num_steps: int = 0  # since pages were last exchanged

    def reach(self, pages: int) -> None:
        """Makes room for so many pages."""
        self.rest.reach(pages)
        if len(self.gone) < len(self.rest.tier):
            self.gone = np.concatenate([self.gone, np.zeros(len(self.rest.tier) - len(self.gone), np.bool_)])

    def lies_below(self, page: int) -> bool:
        return page < len(self.rest.tier) and bool(self.rest.tier[page])

    def below(self, pages: np.ndarray) -> list[int]:
        """Those of ``pages`` that lie below."""
        pages = pages[pages < len(self.rest.tier)]
        found: list[int] = pages[self.rest.tier[pages] != 0].tolist()
        return found

    def cut_out(self, start: int, stop: int) -> Parting:
        """Nothing is known of pages ``start .. stop-1`` any more; what has to be let go of."""
        stop = min(stop, len(self.rest.tier))
        if start >= stop:
            return []
        few = stop - start < len(self.copies)
        pages = [page for page in (range(start, stop) if few else list(self.copies)) if page in self.copies]
        parting = [(self.copies.pop(page), self.lies_below(page)) for page in pages if start <= page < stop]
        self.num_out -= sum(used for _, used in parting)
        self.num_gone -= int(np.count_nonzero(self.gone[start:stop]))
        self.rest.clear(slice(start, stop))
        self.gone[start:stop] = False
        return parting

    def give_up(self, pages: np.ndarray) -> Parting:
        """``pages`` are gone for good; what has to be let go of."""
        parting = []
        for page in pages.tolist():
            copy = self.copies.pop(page, None)
            if copy is not None:
                parting.append((copy, self.lies_below(page)))
        self.num_out -= sum(used for _, used in parting)
        self.rest.clear(pages)
        self.num_gone += int(np.count_nonzero(~self.gone[pages]))
        self.gone[pages] = True
        return parting

    def copy(self) -> "AwayPages":
        """The same for a fork."""
        for page, each in self.copies.items():
            each.owners += 1
            each.users += self.lies_below(page)
        return AwayPages(self.rest.copy(), dict(self.copies), self.gone.copy(), self.num_out, self.num_gone)

    def num_resident(self, table: PageTable, first_page: int) -> int:
        """Pages that have a block, where those before ``first_page`` were given back to a window."""
        return max(0, len(table) - first_page) - self.num_out - self.num_gone


@dataclass(slots=True)
class PagingCounts:
    """Since the cache was opened: pages of running sequences that lost their blocks to a tier (``out``), got one again
    (``back``), were given back for good (``dropped``) or could not be read (``lost``); what steps read where it lay."""

    out: int = 0
    back: int = 0
    dropped: int = 0
    lost: int = 0
    read_bytes: int = 0
    stalled_seconds: float = 0.0


def away_of(cache: "PagedCache", seq: "Sequence") -> tuple[AwayPages, ...]:
    """The sequence's own, made where it has none, and as long as its tables."""
    if seq.away is None:
        seq.away = tuple(AwayPages(NonResidentPages.none(len(group.layers))) for group in cache.layout.groups)
        cache.rows.mark_special(seq.row)
    for away, table in zip(seq.away, seq.tables, strict=True):
        away.reach(len(table))
    return seq.away
