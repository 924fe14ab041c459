"""Paging running sequences: one with a ``resident_limit`` keeps so many pages on the device, and the others below.

    out     a full page that a tier has loses its block at once: the tier holds its copy, and steps read it there
    in      the bytes come back into a block (cache/paging_in.py)
    drop    a page is given back for good, since attention needs it no more: nothing of it is kept
    lose    a page can't be read where it lies: its sequence has to be computed again

Before a step takes blocks, what exceeds the limit goes out; pages that no tier has yet are written down first, ahead of
need where possible. Never go out: the page being written, the one that the sequence stands on in the prefix index,
pages of an open step, and pinned ones. Which of the others go says cache/working_set.py. Moves no bytes itself.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.away import AwayPages, Parting, part
from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.paging_in import Arrivals
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step, StepBatch, Touched
from kvpager.cache.working_set import order
from kvpager.checksum import checksums
from kvpager.errors import ConfigError, OutOfBlocks, PagesLost
from kvpager.memory.page_table import UNMAPPED
from kvpager.prefix.hashing import block_key
from kvpager.tiers.staging import Window
from kvpager.tiers.tier import Page
from kvpager.types import FaultKind, TierKind

if TYPE_CHECKING:
    from kvpager.cache.lower_pages import LowerPages
    from kvpager.cache.paged_cache import PagedCache

_COPY_SECONDS = 5.0  # for pages that have to be written down before a step
_PATIENCE = 0.05  # seconds between two looks at the clock
MIN_LIMIT = 2  # pages: the one being written, and the one before it


@dataclass(slots=True)
class PagingCounts:
    """Pages of running sequences since the cache was opened; bookkeeping only, whatever the tiers did for it."""

    out: int = 0
    back: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Leaving:
    """What a sequence gave up while steps on it were open: let go when the last of them has ended."""

    parting: Parting
    steps: int


@dataclass(frozen=True, slots=True)
class _Tiers:
    lower: "LowerPages"
    copies: PageCopies
    arrivals: Arrivals


class Paging:
    """Of one cache over its tiers. ``window``: through which pages are read that no processor reads in place."""

    def __init__(self, cache: "PagedCache") -> None:
        self._cache = cache
        self.window: Window | None = None
        self.counts = PagingCounts()
        self.has_made_gaps = False  # in chains of the prefix index: pages whose parents may lie below the device
        self._tiers: _Tiers | None = None
        self._why_not = "there is no tier below the device: open the cache with tiers="
        self._leaving: dict[int, list[_Leaving]] = {}  # by id of the step

    def use_tiers(self, nonce: bytes, window: Window | None, why_not: str) -> None:
        """The cache has tiers from now on. ``why_not``: what keeps pages from being used there; empty if nothing."""
        assert self._cache.lower is not None
        copies = PageCopies(self._cache.lower.migration, nonce)
        self._tiers = _Tiers(self._cache.lower, copies, Arrivals(self._cache, self._cache.lower, copies))
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

    def can_step(self, seq: Sequence, count: int) -> bool:
        """Whether a step of ``count`` tokens would open without a wait. Begins what it waits for; ask again later."""
        cache, free = self._cache, 0
        self.collect()
        if seq.resident_limit is not None and not cache.rows.open_steps[seq.row]:
            if self._bring_begun_page(seq):
                return False
            for group in range(cache.layout.num_groups):
                surplus = self._surplus(seq, group, count)
                if surplus > 0 and len(self._ready(seq, group, surplus)) < surplus:
                    return False
                free += max(0, surplus)
        new = self._new_pages(seq, count) * cache.layout.num_groups
        return new <= cache.num_available + free

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
                self._ready(seq, group, surplus)

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
        now = self._below.lower.migration.now
        stop_at = now() + _COPY_SECONDS
        while (surplus := self._surplus(seq, group, count)) > 0:
            ready = self._ready(seq, group, surplus)
            if len(ready) < surplus and self._below.lower.migration.num_open and now() < stop_at:
                self._below.lower.wait(_PATIENCE)
                continue
            gone = self._move_out(seq, group, ready, surplus)
            if gone < surplus:  # whatever can go
                gone += self._move_out(
                    seq, group, self._clean(seq, group, self._candidates(seq, group)), surplus - gone
                )
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
        raise OutOfBlocks(missing, pool.free, pool.pinned, self._cache._reclaimer.num_reclaimable, pool.total)

    def _candidates(self, seq: Sequence, group: int) -> np.ndarray:
        """Pages that may go, the first to go first."""
        rows, row, page_size = self._cache.rows, seq.row, self._cache.layout.page_size
        first, full = int(rows.first_page[group, row]), int(rows.reserved[row]) // page_size
        entries = seq.tables[group].snapshot()[first:full]
        pages = np.flatnonzero(entries >= 0) + first
        pages = pages[pages != rows.published[row] - 1]  # its node is where the sequence stands
        blocks = seq.tables[group].snapshot()[pages]
        pool = self._cache.pool
        pages = pages[~(pool.kept[blocks] & pool.indexed[blocks])]
        use = None if seq.attention is None else seq.attention.page_use(group)
        return order(pages, len(seq.tables[group]), use)

    def _ready(self, seq: Sequence, group: int, wanted: int) -> dict[int, PageCopy]:
        """Of the ``wanted`` pages that should go first those that a tier has; the others are being written now."""
        pages = self._candidates(seq, group)[:wanted]
        clean = self._clean(seq, group, pages)
        if len(clean) < len(pages):
            self._write(seq, group, np.setdiff1d(pages, list(clean)))
        return clean

    def _clean(self, seq: Sequence, group: int, pages: np.ndarray) -> dict[int, PageCopy]:
        """Those of ``pages`` that a tier has and nothing holds."""
        blocks = seq.tables[group].snapshot()[pages]
        pinned = self._cache.pool.pins[blocks] > 0
        found = {}
        for page, block, is_held in zip(pages.tolist(), blocks.tolist(), pinned.tolist(), strict=True):
            copy = None if is_held else self._copy(seq, group, page, block)
            if copy is not None and self._below.copies.is_there(copy):
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
        away = self._away(seq)[group]
        blocks = seq.tables[group].snapshot()[pages].tolist()
        wanted = []
        for page, block in zip(pages.tolist(), blocks, strict=True):
            copy = self._copy(seq, group, page, block)
            if copy is None:
                copy = away.copies[page] = self._below.copies.private(group)
            wanted.append((copy.page, block))
        self._below.lower.migration.demote(wanted, leaving=True)

    def _away(self, seq: Sequence) -> tuple[AwayPages, ...]:
        if seq.away is None:
            groups = self._cache.layout.groups
            seq.away = tuple(AwayPages(NonResidentPages.none(len(group.layers))) for group in groups)
            self._cache.rows.is_special[seq.row] = True
        for away, table in zip(seq.away, seq.tables, strict=True):
            away.reach(len(table))
        return seq.away

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

    # -- out ----------------------------------------------------------------------------------------------------

    def page_out(self, seq: Sequence, group: int, pages: np.ndarray) -> int:
        """Those of ``pages`` (full, resident) that a tier has and nothing holds lose their blocks; returns how many.
        REQUIRES: no step on the sequence is open."""
        self._cache.check_idle(seq, "page out")
        return self._move_out(seq, group, self._clean(seq, group, np.asarray(pages, np.int64)), len(pages))

    def _move_out(self, seq: Sequence, group: int, clean: Mapping[int, PageCopy], at_most: int) -> int:
        """The first of the ``clean`` pages whose copies can be held."""
        table = seq.tables[group]
        self._away(seq)
        held = islice((page for page, copy in clean.items() if self._below.copies.use(copy)), at_most)
        copies = {page: clean[page] for page in sorted(held)}
        out = np.fromiter(copies, np.int64, len(copies))
        blocks = table.snapshot()[out]
        self.lay_below(seq, group, copies)
        self._give_back(blocks)
        self.counts.out += len(out)
        if len(out) and out[-1] == len(table) - 1:
            self._cache.rows.tail[group, seq.row] = 0
        return len(out)

    def lay_below(self, seq: Sequence, group: int, copies: Mapping[int, PageCopy]) -> None:
        """Pages of ``seq`` (ascending) lie in their copies from now on, which it uses already. Of those that have a
        block, that is still theirs."""
        if not copies:
            return
        away, table = self._away(seq)[group], seq.tables[group]
        pages = np.fromiter(copies, np.int64, len(copies))
        slots = np.array([-1 if copy.slot is None else copy.slot.index for copy in copies.values()], np.int32)
        kinds = np.array([TierKind.NONE if copy.tier is None else copy.tier.kind for copy in copies.values()])
        away.reach(int(pages[-1]) + 1)
        for tier in self._below.copies.tiers:
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
        away.num_out += len(pages)

    def _part_checksums(self, group: int, blocks: np.ndarray) -> np.ndarray | None:
        """uint64 [blocks, layers]: of each layer's part; None where no processor of the host can read a block."""
        memory = getattr(self._cache.arena, "blocks", None)
        if not isinstance(memory, np.ndarray):
            return None
        layout = self._cache.layout
        layers = len(layout.groups[group].layers)
        size = layout.groups[group].bytes_per_token(layout.item_bytes) * layout.page_size // layers
        parts = [memory[block, at * size : (at + 1) * size] for block in blocks.tolist() for at in range(layers)]
        return np.array(checksums(parts), np.uint64).reshape(len(blocks), layers)

    def _give_back(self, blocks: np.ndarray) -> None:
        """One mapping less; blocks that nobody else maps leave the prefix index, and are free."""
        cache = self._cache
        lone = blocks[(cache.pool.refcount[blocks] == 1) & cache.pool.indexed[blocks]]
        if len(lone):
            self.has_made_gaps = True
            cache.evictable.left(lone)
            for block in lone.tolist():
                node = cache.index.node_of_block(block)
                left = cache.index.detach(block)
                if left != node:
                    cache.evictable.lost_child(left)
            cache.pool.unpublish(lone)
        cache.pool.release(blocks)

    # -- in -----------------------------------------------------------------------------------------------------

    def page_in(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Brings non-resident ``pages`` up and waits. Raises OutOfBlocks (nothing changed), or PagesLost."""
        self._cache.check_idle(seq, "page in")
        self._below.arrivals.begin(seq, group, pages)
        self._below.arrivals.wait(seq)

    def collect(self) -> None:
        """What has ended is completed."""
        if self._tiers is not None:
            self._tiers.lower.collect()
            self.settle()

    def settle(self) -> None:
        """Loads that have ended are mapped; what nobody owns any more is forgotten."""
        if self._tiers is not None:
            self._tiers.arrivals.settle()
            self._tiers.copies.collect()

    # -- gone ---------------------------------------------------------------------------------------------------

    def drop_pages(self, seq: Sequence, group: int, pages: np.ndarray) -> None:
        """Gives full ``pages`` (ascending) back for good, resident or not; what others share of them stays whole.

        What the sequence computes from now on is approximate, so it publishes no more.
        """
        cache, rows, row = self._cache, self._cache.rows, seq.row
        pages = np.asarray(pages, np.int64)
        away, table = self._away(seq)[group], seq.tables[group]
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
        cache._give_back(seq, blocks[::-1])
        self.approximate_from(seq, seq.length)
        self.counts.dropped += len(pages)

    def approximate_from(self, seq: Sequence, position: int) -> None:
        """What is computed at ``position`` and behind it is not what exact attention would give: it is never found."""
        seq.exact_until = position if seq.exact_until is None else min(seq.exact_until, position)
        until = self._cache.rows.publish_until
        until[seq.row] = min(until[seq.row], seq.exact_until // self._cache.layout.page_size)

    def lose(self, lost: PagesLost) -> list[Sequence]:
        """These pages can't be read: the tiers that have them forget them. Returns the sequences, which can only be
        freed now, and computed again."""
        found = []
        for (row, group), pages in lost.pages.items():
            seq = self._cache.sequences.get(row)
            if seq is None or seq.away is None:
                continue
            away = seq.away[group]
            there = [page for page in pages if away.lies_below(page)]
            for page in there:
                self._below.copies.forget(away.copies[page], lost.cause)
            if there:
                which = np.unique(np.array(there, np.int64))
                if self._cache.rows.open_steps[row]:
                    seq.tables[group].detach()
                self.let_go(seq, away.give_up(which))
                seq.tables[group].unmap_pages(which)
                self.counts.lost += len(which)
                seq.is_lost = True
                self._cache.rows.is_special[row] = True
                found.append(seq)
        return list(dict.fromkeys(found))

    def unmapped(self, seq: Sequence, group: int, start: int, stop: int) -> None:
        """Pages ``start .. stop-1`` are about to be unmapped."""
        if seq.away is not None:
            self.let_go(seq, seq.away[group].cut_out(start, stop))

    def let_go(self, seq: Sequence, parting: Parting) -> None:
        """At once, or when the last step has ended that may read them."""
        steps = [step for step in self._cache._open_steps if seq in step.sequences] if parting else []
        if not steps:
            part(self._below.copies, parting)
            return
        leaving = _Leaving(parting, len(steps))
        for step in steps:
            self._leaving.setdefault(id(step), []).append(leaving)

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
                self.approximate_from(seq, start)

    def ended(self, step: Step, counts: np.ndarray) -> None:
        """Nothing reads any more what was given up meanwhile; what attention needs no more is given back, and what will
        have to go before the next such step is written down."""
        for leaving in self._leaving.pop(id(step), ()):
            leaving.steps -= 1
            if leaving.steps == 0:
                part(self._below.copies, leaving.parting)
        if step.batch.touched is not None:
            self._count(step, step.batch.touched)
        for at, seq in self._special(step, counts):
            if seq.attention is not None:
                for group in range(self._cache.layout.num_groups):
                    self.drop_pages(seq, group, seq.attention.pages_to_give_back(group, seq.length))
            if not self._cache.rows.open_steps[seq.row]:
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
            seq.faults.pages += pages
            seq.faults.bytes += size
            seq.faults.seconds += seconds
            if pages:
                self._cache._faults.add(FaultKind.MAJOR, pages, seconds)

    # -- order --------------------------------------------------------------------------------------------------

    def forked(self, seq: Sequence, twin: Sequence) -> None:
        """``twin`` has the same pages from now on, below the device too."""
        if seq.away is not None:
            twin.away = tuple(away.copy() for away in seq.away)
        twin.exact_until, twin.is_lost = seq.exact_until, seq.is_lost
        twin._resident_limit = seq._resident_limit
        twin._attention = None if seq._attention is None else seq._attention.forked()

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
        if seq.attention is not None:
            seq.attention.cut(length)

    def held_blocks(self) -> list[int]:
        """Blocks that loads hold, one entry for each hold."""
        return [] if self._tiers is None else self._tiers.arrivals.held_blocks()

    def leaving(self) -> Iterable[Parting]:
        """What waits for open steps, for checks."""
        seen = {id(each): each for leavings in self._leaving.values() for each in leavings}
        return [each.parting for each in seen.values()]
