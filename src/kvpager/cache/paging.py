"""Paging running sequences: one with a ``resident_limit`` keeps so many pages on the device, and the others below.

    out     a full page that a tier has loses its block at once: the tier holds its copy, and steps read it there
    in      the bytes come back into a block (cache/paging_in.py)
    drop    a page is given back for good, since attention needs it no more: nothing of it is kept
    lose    a page can't be read where it lies: its sequence has to be computed again

Before a step takes blocks, what exceeds the limit goes out; pages that no tier has yet are written down first, ahead of
need where possible. Never go out: the page being written, the one that the sequence stands on in the prefix index,
pages of an open step, and pinned ones. Which of the others go says cache/working_set.py. Moves no bytes itself.
"""

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.away import PagingCounts
from kvpager.cache.check_away import check_away
from kvpager.cache.exchanging import exchange_pages
from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.paging_in import Arrivals
from kvpager.cache.paging_out import Departures
from kvpager.cache.paging_statistics import PagingStatistics
from kvpager.cache.partings import Partings
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step, StepBatch, Touched
from kvpager.errors import ConfigError, OutOfBlocks, PagesLost
from kvpager.tiers.staging import Window
from kvpager.types import FaultKind, TierKind

if TYPE_CHECKING:
    from kvpager.cache.lower_pages import LowerPages
    from kvpager.cache.paged_cache import PagedCache

_COPY_SECONDS = 5.0  # for pages that have to be written down before a step
_PATIENCE = 0.05  # seconds between two looks at the clock
MIN_LIMIT = 2  # pages: the one being written, and the one before it


@dataclass(frozen=True, slots=True)
class _Tiers:
    lower: "LowerPages"
    copies: PageCopies
    departures: Departures
    arrivals: Arrivals


class Paging:
    """Of one cache over its tiers. ``window``: through which pages are read that no processor reads in place."""

    def __init__(self, cache: "PagedCache") -> None:
        self._cache = cache
        self.window: Window | None = None
        self.counts = PagingCounts()
        self.partings = Partings(cache, self.counts)
        self._tiers: _Tiers | None = None
        self._why_not = "there is no tier below the device: open the cache with tiers="

    def use_tiers(self, nonce: bytes, window: Window | None, why_not: str) -> None:
        """The cache has tiers from now on. ``why_not``: what keeps pages from being used there; empty if nothing."""
        cache, lower = self._cache, self._cache.lower
        assert lower is not None
        copies = self.partings.copies = PageCopies(lower.migration, nonce)
        departures = Departures(cache, lower, copies, self.counts)
        self._tiers = _Tiers(lower, copies, departures, Arrivals(cache, lower, copies, self.counts))
        self.window = window
        self._why_not = why_not

    @property
    def copies(self) -> PageCopies | None:
        """What the tiers hold for running sequences."""
        return None if self._tiers is None else self._tiers.copies

    # -- questions ----------------------------------------------------------------------------------------------

    def why_not(self) -> str:
        """Why no sequence can have pages below the device while it runs, and what to do; empty where it can."""
        if self._why_not:
            return self._why_not
        usable, tiers = self._below.copies.tiers, self._below.lower.migration.tiers
        if not usable:
            reasons = [f"{tier.name}: {tier.why_not_in_place()}" for tier in tiers]
            return "no tier keeps pages so that they can be used where they lie (" + "; ".join(reasons) + ")"
        if self.window is None and any(tier.kind is not TierKind.HOST for tier in usable):
            return "pages of disk and remote tiers are read through a window: open the cache with window="
        return ""

    def resident_need(self, tokens: int) -> int:
        """Blocks that a sequence with a limit needs at least for steps of ``tokens`` tokens, however long it is."""
        layout = self._cache.layout
        return layout.num_groups * max(MIN_LIMIT, 1 + layout.num_pages(tokens + layout.page_size - 1))

    def num_resident(self, seq: Sequence) -> list[int]:
        """Pages of each layer group that have a block."""
        return [self._num_resident(seq, group) for group in range(self._cache.layout.num_groups)]

    def num_non_resident(self, seq: Sequence) -> int:
        """Pages that lie below the device, in all layer groups."""
        return 0 if seq.away is None else sum(each.num_out for each in seq.away)

    def non_resident(self, seq: Sequence, group: int) -> NonResidentPages | None:
        """Where the pages of a group lie that have no block, as long as its table; None where there are none."""
        if seq.away is None or not seq.away[group].num_out:
            return None
        seq.away[group].reach(len(seq.tables[group]))
        return seq.away[group].rest

    def check_limit(self, limit: int, tokens: object) -> None:
        """Raises ConfigError unless a sequence with these token ids can have this limit here."""
        if tokens is None:
            raise ConfigError("a sequence that is written by hand, without token ids, stays on the device")
        why_not = self.why_not()
        if why_not:
            raise ConfigError(f"a resident limit is not possible here: {why_not}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < MIN_LIMIT:
            raise ConfigError(f"a resident limit is a whole number of at least {MIN_LIMIT} pages, not {limit!r}")

    def statistics(self) -> PagingStatistics | None:
        """None as long as no page of a running sequence was ever away from the device."""
        counts, copies = self.counts, self.copies
        if not (counts.out or counts.dropped or (copies is not None and copies.num_held)):
            return None
        held = {} if copies is None else {kind: count for kind, count in copies.num_held.items() if count}
        return PagingStatistics(
            below=held,
            out=counts.out,
            back=counts.back,
            dropped=counts.dropped,
            lost=counts.lost,
            window_bytes=0 if self.window is None else self.window.num_bytes,
            read_bytes=counts.read_bytes,
            stalled_seconds=counts.stalled_seconds,
        )

    def can_step(self, seq: Sequence, count: int) -> bool:
        """Whether a step of ``count`` tokens would open, or be refused, without a wait. Begins what it waits for; ask
        again later. False where blocks are lacking."""
        cache, free = self._cache, 0
        self.collect()
        if seq.resident_limit is not None and not cache.rows.open_steps[seq.row]:
            try:
                is_coming = self._bring_begun_page(seq)
            except OutOfBlocks:
                return False
            if is_coming and not self._is_begun_page_lost(seq):
                return False
            for group in range(cache.layout.num_groups):
                surplus = self._surplus(seq, group, count)
                if surplus > 0 and len(self._below.departures.ready(seq, group, surplus)) < surplus:
                    return not self._below.lower.migration.num_open  # nothing to wait for: let it say what is wrong
                free += max(0, surplus)
        new = self._new_pages(seq, count) * cache.layout.num_groups
        return new <= cache.num_available + free

    def can_step_without_more(self, seq: Sequence, count: int) -> bool:
        """Whether a step of ``count`` tokens would open with what tiers have already, whichever pages that are. Begins
        nothing: in a tier that is nearly full, what is written takes the place of what was."""
        new = self._new_pages(seq, count) * self._cache.layout.num_groups
        surplus = [max(0, self._surplus(seq, group, count)) for group in range(self._cache.layout.num_groups)]
        return not self.num_stranded(seq, count) and new <= self._cache.num_available + sum(surplus)

    def num_stranded(self, seq: Sequence, count: int) -> int:
        """Pages that have to go before a step of ``count`` tokens, beyond those that a tier has. Begins nothing."""
        departures, stranded = self._below.departures, 0
        for group in range(self._cache.layout.num_groups):
            surplus = self._surplus(seq, group, count)
            if surplus > 0:
                clean = departures.clean(seq, group, departures.candidates(seq, group))
                stranded += max(0, surplus - len(clean))
        return stranded

    @property
    def _below(self) -> _Tiers:
        assert self._tiers is not None, "a cache without tiers has no pages below the device"
        return self._tiers

    # -- before a step ------------------------------------------------------------------------------------------

    def make_room(self, sequences: List[Sequence], counts: List[int]) -> None:
        """What these steps would have beyond the sequences' limits goes out. Waits for copies, a bounded time.

        Raises OutOfBlocks where too little can go; ConfigError where the limit holds no such step; PagesLost.
        """
        for seq, count in zip(sequences, counts, strict=True):
            if self._cache.rows.open_steps[seq.row]:
                continue  # its pages are being read
            if seq.is_lost:
                raise ConfigError("pages of this sequence were lost: free it, and compute it again")
            if self._bring_begun_page(seq):
                self._below.arrivals.wait(seq)
            if seq.resident_limit is not None:
                for group in range(self._cache.layout.num_groups):
                    self._shed(seq, group, count)

    def begin_writing(self, seq: Sequence, count: int) -> None:
        """Pages that will have to go before a step of ``count`` tokens are written down, where no tier has them."""
        if seq.resident_limit is None or seq.is_freed:
            return
        for group in range(self._cache.layout.num_groups):
            surplus = self._surplus(seq, group, count)
            if surplus > 0:
                self._below.departures.ready(seq, group, surplus)

    def _surplus(self, seq: Sequence, group: int, count: int) -> int:
        assert seq.resident_limit is not None
        return self._num_resident(seq, group) + self._new_pages(seq, count) - seq.resident_limit

    def _new_pages(self, seq: Sequence, count: int) -> int:
        layout, length = self._cache.layout, int(self._cache.rows.reserved[seq.row])
        return layout.num_pages(length + count) - layout.num_pages(length)

    def _num_resident(self, seq: Sequence, group: int) -> int:
        first = int(self._cache.rows.first_page[group, seq.row])
        if seq.away is None:
            return max(0, len(seq.tables[group]) - first)
        return seq.away[group].num_resident(seq.tables[group], first)

    def _shed(self, seq: Sequence, group: int, count: int) -> None:
        """Of the pages that tiers have, the first to go; where they are too few, others are written and waited for."""
        departures, migration = self._below.departures, self._below.lower.migration
        stop_at = migration.now() + _COPY_SECONDS
        while (surplus := self._surplus(seq, group, count)) > 0:
            clean = departures.clean(seq, group, departures.candidates(seq, group))
            if len(clean) < surplus:
                departures.ready(seq, group, surplus)
                if migration.num_open and migration.now() < stop_at:
                    self._below.lower.wait(_PATIENCE)
                    self.partings.settle()
                    continue
            gone = departures.move_out(seq, group, clean, surplus)
            if gone < surplus:
                self._refuse(seq, group, count, surplus - gone)

    def _refuse(self, seq: Sequence, group: int, count: int, missing: int) -> None:
        pool, limit = self._cache.pool.counts(), seq.resident_limit
        need = self.resident_need(count) // self._cache.layout.num_groups
        if limit is not None and limit < need:
            raise ConfigError(
                f"a step of {count} tokens needs {need} pages on the device, and the sequence may have {limit}: "
                "take fewer tokens a step, or raise its resident limit"
            )
        self._cache.allocation_failures += 1
        raise OutOfBlocks(missing, pool.free, pool.pinned, self._cache._reclaimer.num_reclaimable, pool.total)

    def _bring_begun_page(self, seq: Sequence) -> bool:
        """After a cut the last page may be begun and lie below the device: it comes up. Whether it has to be waited
        for."""
        length = int(self._cache.rows.reserved[seq.row])
        if seq.away is None or length % self._cache.layout.page_size == 0:
            return False
        last = np.array([length // self._cache.layout.page_size])
        groups = [g for g, away in enumerate(seq.away) if away.lies_below(int(last[0]))]
        for group in groups:
            self._below.arrivals.begin(seq, group, last)
        return bool(groups)

    def _is_begun_page_lost(self, seq: Sequence) -> bool:
        page = int(self._cache.rows.reserved[seq.row]) // self._cache.layout.page_size
        copies = [away.copies[page] for away in seq.away or () if away.lies_below(page)]
        return any(copy.error is not None for copy in copies)

    # -- out ----------------------------------------------------------------------------------------------------

    def page_out(self, seq: Sequence, group: int, pages: np.ndarray) -> int:
        """Those of ``pages`` (full, resident) that a tier has and nothing holds lose their blocks; returns how many.
        REQUIRES: no step on the sequence is open."""
        self._cache.check_idle(seq, "page out")
        clean = self._below.departures.clean(seq, group, np.asarray(pages, np.int64))
        return self._below.departures.move_out(seq, group, clean, len(pages))

    # -- in -----------------------------------------------------------------------------------------------------

    def page_in(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Brings non-resident ``pages`` up and waits. Raises OutOfBlocks (nothing changed), or PagesLost."""
        self._cache.check_idle(seq, "page in")
        self._below.arrivals.begin(seq, group, pages)
        self._below.arrivals.wait(seq)

    def lay_below(self, seq: Sequence, group: int, copies: Mapping[int, PageCopy]) -> None:
        """Pages of a new sequence lie in these copies, which it uses already."""
        if copies:
            self._below.departures.lay_below(seq, group, copies)

    def collect(self) -> None:
        """What has ended is completed."""
        if self._tiers is not None:
            self._tiers.lower.collect()
            self.settle()

    def settle(self) -> None:
        """Loads that have ended are mapped; what nobody owns any more is forgotten."""
        if self._tiers is not None:
            self._tiers.arrivals.settle()
            self.partings.settle()
            self._tiers.copies.collect()

    # -- gone ---------------------------------------------------------------------------------------------------

    def drop_pages(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Gives full ``pages`` (ascending) back for good, resident or not; what others share of them stays whole.

        What the sequence computes from now on is approximate, so it publishes no more. Raises ConfigError for pages
        that are not full, or the last one.
        """
        self._cache.check_usable(seq)
        self.partings.drop_pages(seq, group, np.asarray(pages, np.int64))

    def lose(self, lost: PagesLost) -> list[Sequence]:
        """These pages can't be read: the tiers that have them forget them. Returns their sequences, which can only be
        freed now, and computed again."""
        return self.partings.lose(lost)

    # -- steps --------------------------------------------------------------------------------------------------

    def described(self, batch: StepBatch, sequences: List[Sequence]) -> StepBatch:
        """The batch with what attention has to know of these sequences beside their blocks."""
        states = tuple(seq.attention for seq in sequences)
        groups = range(self._cache.layout.num_groups)
        places = [(group, s, self.non_resident(seq, group)) for s, seq in enumerate(sequences) for group in groups]
        below = {(group, s): pages for group, s, pages in places if pages is not None}
        return replace(
            batch,
            states=states if any(state is not None for state in states) else (),
            non_resident=below,
            window=self.window if below else None,
            touched=Touched.none(len(sequences)) if below else None,
        )

    def computed(self, step: Step, counts: np.ndarray) -> None:
        """The tokens of a step are there, those of ``counts`` that go on: what of them is approximate?"""
        for at, seq in self._special(step, counts):
            start, stop = int(step.batch.starts[at]), int(step.batch.stops[at])
            state = seq.attention
            if state is not None and not state.is_exact and (stop - start == 1 or stop > seq.prompt_tokens):
                self.partings.approximate_from(seq, start)

    def ended(self, step: Step, counts: np.ndarray) -> None:
        """Nothing reads any more what was given up meanwhile; what attention needs no more is given back, and what will
        have to go before the next such step is written down."""
        self.partings.ended(step)
        if step.batch.touched is not None:
            self._count(step, step.batch.touched)
        for at, seq in self._special(step, counts):
            if seq.attention is not None:
                for group in range(self._cache.layout.num_groups):
                    self.partings.drop_pages(seq, group, seq.attention.pages_to_give_back(group, seq.length))
            if not self._cache.rows.open_steps[seq.row]:
                if self._tiers is not None:
                    exchange_pages(seq, self._tiers.departures, self._tiers.arrivals)
                self.begin_writing(seq, int(step.batch.query_lengths[at]))

    def _special(self, step: Step, counts: np.ndarray) -> list[tuple[int, Sequence]]:
        special = counts & self._cache.rows.is_special[step.batch.rows]
        return [(at, step.sequences[at]) for at in np.flatnonzero(special).tolist()]

    def _count(self, step: Step, touched: Touched) -> None:
        """Parts become pages: a page is read once in each layer."""
        layers = self._cache.layout.layers // self._cache.layout.num_groups
        for seq, parts, size, seconds in zip(
            step.sequences, touched.parts.tolist(), touched.bytes.tolist(), touched.seconds.tolist(), strict=True
        ):
            pages = -(-parts // layers)
            self.counts.read_bytes += size
            self.counts.stalled_seconds += seconds
            seq.faults.pages += pages
            seq.faults.bytes += size
            seq.faults.seconds += seconds
            if pages:
                self._cache._faults.add(FaultKind.MAJOR, pages, seconds)

    # -- order --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is read below the device any more. REQUIRES: no sequences."""
        self.partings.settle(all_of_it=True)
        self.settle()
        if self.window is not None:
            self.window.close()

    def held_blocks(self) -> list[int]:
        """Blocks that loads hold, one entry for each hold."""
        return [] if self._tiers is None else self._tiers.arrivals.held_blocks()

    def check(self) -> None:
        """Raises InvariantError unless all is as it should be of pages away from the device."""
        check_away(self._cache)
