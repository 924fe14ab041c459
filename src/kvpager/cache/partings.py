"""Pages that a sequence gives up: dropped for good, lost, cut off, or all of them when it ends.

What an open step may still read is let go of when the step has ended, and very much of it bit by bit. Copies below the
device are shared by forks, and go with their last owner (cache/page_copies.py).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.away import PagingCounts, Parting, away_of
from kvpager.cache.giving_back import give_back
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.sequence import Sequence
from kvpager.errors import ConfigError, PagesLost

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.step import Step


@dataclass(slots=True)
class _Leaving:
    """What a sequence gave up while steps on it were open: let go when the last of them has ended."""

    parting: Parting
    steps: int


class Partings:
    """``copies``: where the cache has tiers."""

    def __init__(self, cache: "PagedCache", counts: PagingCounts) -> None:
        self._cache = cache
        self._counts = counts
        self.copies: PageCopies | None = None
        self._leaving: dict[int, list[_Leaving]] = {}  # by id of the step
        self._backlog: deque[tuple[PageCopy, bool]] = deque()
        self.at_once = 1024  # copies let go of at one border of steps: some 2 ms

    def drop_pages(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Gives full ``pages`` (ascending) back for good, resident or not; what others share of them stays whole.

        What the sequence computes from now on is approximate, so it publishes no more.
        """
        cache, rows, row = self._cache, self._cache.rows, seq.row
        if len(pages) == 0:
            return
        away, table = away_of(self._cache, seq)[group], seq.tables[group]
        pages = pages[(pages >= rows.first_page[group, row]) & ~away.gone[pages]]
        if len(pages) == 0:
            return
        if pages[-1] >= min(rows.committed[row] // cache.layout.page_size, len(table) - 1):
            raise ConfigError(f"page {pages[-1]} is not full, or the last one: only pages before it can be given back")
        if rows.open_steps[row]:
            table.detach()
        self.let_go(seq, away.give_up(pages))
        blocks = table.unmap_pages(pages)
        if (pages == rows.published[row] - 1).any():
            cache._leave_index(seq)
        give_back(cache, seq, blocks[::-1])
        self.approximate_from(seq, seq.length)
        self._counts.dropped += len(pages)

    def approximate_from(self, seq: Sequence, position: int) -> None:
        """What is computed at ``position`` and behind it is not what exact attention would give: it is never found."""
        seq.exact_until = position if seq.exact_until is None else min(seq.exact_until, position)
        until = self._cache.rows.publish_until
        until[seq.row] = min(until[seq.row], seq.exact_until // self._cache.layout.page_size)

    def lose(self, lost: PagesLost) -> list[Sequence]:
        """These pages can't be read: the tiers that have them forget them. Returns the sequences, which can only be
        freed now, and computed again."""
        assert self.copies is not None
        found = []
        for (row, group), pages in lost.pages.items():
            seq = self._cache.sequences.get(row)
            if seq is None or seq.away is None:
                continue
            away = seq.away[group]
            there = [page for page in pages if away.lies_below(page)]
            for page in there:
                self.copies.forget(away.copies[page], lost.cause)
            if there:
                which = np.unique(np.array(there, np.int64))
                if self._cache.rows.open_steps[row]:
                    seq.tables[group].detach()
                self.let_go(seq, away.give_up(which))
                seq.tables[group].unmap_pages(which)
                self._counts.lost += len(which)
                seq.is_lost = True
                self._cache.rows.mark_special(row)
                found.append(seq)
        return list(dict.fromkeys(found))

    def unmapped(self, seq: Sequence, group: int, start: int, stop: int) -> None:
        """Pages ``start .. stop-1`` are about to be unmapped."""
        if seq.away is not None:
            self.let_go(seq, seq.away[group].cut_out(start, stop))

    def let_go(self, seq: Sequence, parting: Parting) -> None:
        """At once, or when the last step has ended that may read them."""
        steps = [step for step in self._cache.open_steps if seq in step.sequences] if parting else []
        if not steps:
            self._part(parting)
            return
        leaving = _Leaving(parting, len(steps))
        for step in steps:
            self._leaving.setdefault(id(step), []).append(leaving)

    def ended(self, step: "Step") -> None:
        """Nothing reads any more what was given up meanwhile."""
        for leaving in self._leaving.pop(id(step), ()):
            leaving.steps -= 1
            if leaving.steps == 0:
                self._part(leaving.parting)

    def _part(self, parting: Parting) -> None:
        """A context of a million tokens goes bit by bit, or every other sequence would have to wait."""
        self._backlog.extend(parting)
        if len(self._backlog) <= self.at_once:
            self.settle()

    def settle(self, *, all_of_it: bool = False) -> None:
        """The border of a step: lets go of some of what is still to be let go of."""
        for _ in range(len(self._backlog) if all_of_it else min(len(self._backlog), self.at_once)):
            copy, was_used = self._backlog.popleft()
            assert self.copies is not None
            if was_used:
                self.copies.let_go(copy)
            self.copies.disown(copy)

    def check_cut(self, seq: Sequence, length: int) -> None:
        """Raises ConfigError unless the page that a token at ``length`` goes to is there."""
        page, filled = divmod(length, self._cache.layout.page_size)
        if filled and seq.away is not None and any(page < len(each.gone) and each.gone[page] for each in seq.away):
            raise ConfigError(
                f"can't truncate to {length}: that page was given back, since attention needed it no more"
            )

    def cut(self, seq: Sequence, length: int) -> None:
        """The sequence was cut to ``length`` tokens: a begun last page will be written, so no copy counts."""
        page, filled = divmod(length, self._cache.layout.page_size)
        for away in seq.away or () if filled else ():
            copy = away.copies.get(page)
            if copy is not None and not away.lies_below(page):
                del away.copies[page]
                self.let_go(seq, [(copy, False)])
        if seq.exact_until is not None:  # what comes now may see less than what was cut off did
            self.approximate_from(seq, length)
        if seq.attention is not None:
            seq.attention.cut(length)

    def forked(self, seq: Sequence, twin: Sequence) -> None:
        """``twin`` has the same pages from now on, below the device too."""
        if seq.away is not None:
            twin.away = tuple(away.copy() for away in seq.away)
        twin.exact_until, twin.is_lost = seq.exact_until, seq.is_lost
        twin._resident_limit = seq._resident_limit
        twin._attention = None if seq._attention is None else seq._attention.forked()

    def leaving(self) -> Iterable[Parting]:
        """What is still to be let go of, for checks."""
        seen = {id(each): each for leavings in self._leaving.values() for each in leavings}
        return [list(self._backlog), *(each.parting for each in seen.values())]
