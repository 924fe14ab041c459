"""Opens and closes steps: faults are resolved before anything is computed, and what was computed counts afterwards.

    open     check, page out (sequences with a resident limit), copy on write, map new pages
    close    commit, publish, give back what no later step needs; or take all of it back

Steps that share a sequence count in the order in which they were opened. It takes and gives back blocks through the
cache, whose thread calls it.
"""

from collections.abc import Sequence as List
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.cache.copying import repoint
from kvpager.cache.cutting import can_stand, cut
from kvpager.cache.giving_back import give_back
from kvpager.cache.publishing import publish, publish_step
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step, StepBatch
from kvpager.cache.taking import take
from kvpager.errors import ConfigError, InvariantError
from kvpager.types import FaultKind, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_UNBOUNDED = np.iinfo(np.int64).max
_cache_of = attrgetter("_cache")
_row_of = attrgetter("row")
_DEVICE = int(TierKind.DEVICE)
_tokens_of = attrgetter("tokens")


class Steps:
    """``rewind``: tokens that a truncation may take back after a sliding window has moved on."""

    def __init__(self, cache: "PagedCache", rewind: int) -> None:
        self._cache = cache
        self._rows = cache.rows
        self._pool = cache.pool
        self._layout = cache.layout
        self._rewind = rewind
        self._windows = [group.window for group in cache.layout.groups]
        self._has_only_windows = None not in self._windows
        self.open_steps: list[Step] = []
        self._last_sequences: tuple[Sequence, ...] = ()  # decode steps go over the same ones again and again
        self._last_rows = np.empty(0, np.int64)
        self._last_changes = -1

    def open(self, sequences: List[Sequence], counts: np.ndarray) -> Step:
        """See PagedCache.step_over."""
        if (step := self._open_plainly(sequences, counts)) is not None:
            return step
        rows = self._rows_of(sequences, counts)
        is_special = self._rows.has_special(rows)
        if is_special:
            self._cache.paging.make_room(sequences, counts.tolist())
        page_size, num_groups = self._layout.page_size, self._layout.num_groups
        starts = self._rows.reserved[rows]
        stops = starts + counts
        new_pages = -(-stops // page_size) + (-starts // page_size)
        copies = self._pages_to_copy(rows, starts)
        if self._cache.runs is None:
            fresh = take(self._cache, int(new_pages.sum()) * num_groups + len(copies))
        else:
            fresh = self._cache.runs.take(rows, -(-starts // page_size), new_pages)
        if copies:
            self._copy_on_write(sequences, starts, copies, fresh[: len(copies)])
        if len(fresh) > len(copies):
            self._map_new_pages(sequences, rows, starts, new_pages, fresh[len(copies) :])
        self._rows.reserved[rows] = stops
        self._rows.open_steps[rows] += 1
        tables = tuple(tuple([seq.tables[g].entries for seq in sequences]) for g in range(num_groups))
        batch = StepBatch(self._layout, rows, starts, counts, tables, self._rows.tail[:, rows])
        if is_special:
            batch = self._cache.paging.described(batch, sequences)
        step = Step(self._last_sequences, batch, self._close)
        self.open_steps.append(step)
        return step

    def _open_plainly(self, sequences: List[Sequence], counts: np.ndarray) -> Step | None:
        """The same where no sequence is special and nothing is to be copied, natively but for new pages; None, with
        nothing changed, for any other step, and for one that is not possible."""
        cache, num, num_groups = self._cache, len(sequences), self._layout.num_groups
        if num == 0 or cache.runs is not None or (books := cache.books.native()) is None:
            return None
        if counts.dtype != np.int64 or not counts.flags.c_contiguous:
            return None
        rows = self._known_rows(sequences)
        starts, new_pages, tails = (
            np.empty(num, np.int64),
            np.empty(num, np.int64),
            np.empty((num_groups, num), np.int32),
        )
        needed = books.open(rows, counts, self._last_sequences, starts, tails, new_pages)
        if needed < 0:
            return None
        if needed:
            self._map_natively(books, rows, starts, new_pages, needed * num_groups)
            books.opened(rows, counts, tails)
        tables = tuple(tuple([seq.tables[g].entries for seq in sequences]) for g in range(num_groups))
        step = Step(self._last_sequences, StepBatch(self._layout, rows, starts, counts, tables, tails), self._close)
        self.open_steps.append(step)
        return step

    def _map_natively(
        self, books: Any, rows: np.ndarray, starts: np.ndarray, new_pages: np.ndarray, needed: int
    ) -> None:
        cache, pool = self._cache, self._pool
        if needed <= pool.num_free and cache.page_log is None and not pool.has_poison:
            begin = cache._faults.now()
            if books.map_free(rows, self._last_sequences, starts, new_pages, needed, _DEVICE):
                cache._faults.add(FaultKind.DEMAND, needed, cache._faults.now() - begin)
                return
        fresh = take(cache, needed)
        if cache.page_log is not None:
            cache.page_log.demanded(fresh)
        with cache._faults.handling(FaultKind.DEMAND, needed):
            if not books.map(rows, self._last_sequences, starts, new_pages, fresh, _DEVICE):
                raise InvariantError("a page that a step needs is mapped already")

    def _rows_of(self, sequences: List[Sequence], counts: np.ndarray) -> np.ndarray:
        """Their rows, once it is known that a step over them is possible."""
        if len(sequences) == 0:
            raise ConfigError("a step needs at least one sequence")
        if counts.min() < 1:
            raise ConfigError("every sequence of a step needs at least one new token; leave out the others")
        rows = self._known_rows(sequences)
        self._check_tokens(sequences, rows, counts)
        return rows

    def _known_rows(self, sequences: List[Sequence]) -> np.ndarray:
        """The rows of sequences that are usable."""
        same = tuple(sequences)
        if self._last_changes != self._rows.changes[0] or self._last_sequences != same:
            rows = np.fromiter(map(_row_of, sequences), np.int64, len(sequences))
            if rows.min() < 0 or set(map(_cache_of, sequences)) != {self._cache}:
                for seq in sequences:
                    self._cache.check_usable(seq)
            self._last_sequences, self._last_rows, self._last_changes = same, rows, self._rows.changes[0]
        return self._last_rows

    def _check_tokens(self, sequences: List[Sequence], rows: np.ndarray, counts: np.ndarray) -> None:
        try:
            known = np.fromiter(map(len, map(_tokens_of, sequences)), np.int64, len(sequences))
        except TypeError:  # some are written by hand
            known = np.array([_UNBOUNDED if (ids := seq.tokens) is None else len(ids) for seq in sequences])
        stops = self._rows.reserved[rows] + counts
        if np.count_nonzero(stops > known):
            at = int(np.argmax(stops > known))
            raise ConfigError(
                f"a step of {counts[at]} tokens from position {stops[at] - counts[at]} needs {stops[at]} token ids, "
                f"but the sequence has {known[at]}; append them first"
            )

    def _pages_to_copy(self, rows: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
        """(group, index) of each last page that is begun, and shared or published, so that writing it copies it."""
        partial = starts % self._layout.page_size != 0
        if not np.count_nonzero(partial):
            return []
        tails = self._rows.tail[:, rows]
        protected = self._pool.is_write_protected(tails) & partial
        if not np.count_nonzero(protected):
            return []
        owners: dict[int, int] = {}
        copies = []
        for group, at in np.argwhere(protected).tolist():
            block = int(tails[group, at])
            left = owners.setdefault(block, int(self._pool.refcount[block]))
            if left > 1 or self._pool.indexed[block] or self._pool.pins[block]:  # else: the last owner writes in place
                owners[block] = left - 1
                copies.append((group, at))
        return copies

    def _copy_on_write(
        self, sequences: List[Sequence], starts: np.ndarray, copies: list[tuple[int, int]], fresh: np.ndarray
    ) -> None:
        with self._cache._faults.handling(FaultKind.COPY_ON_WRITE, len(copies)):
            sources = np.array([self._rows.tail[group, sequences[at].row] for group, at in copies], np.int32)
            self._cache.arena.copy(sources, fresh)
            if self._cache.page_log is not None:
                self._cache.page_log.copied(sources.tolist(), fresh.tolist())
            for (group, at), source, target in zip(copies, sources, fresh.tolist(), strict=True):
                repoint(self._cache, sequences[at], group, int(starts[at]) // self._layout.page_size, source, target)

    def _map_new_pages(
        self, sequences: List[Sequence], rows: np.ndarray, starts: np.ndarray, new_pages: np.ndarray, fresh: np.ndarray
    ) -> None:
        if self._cache.page_log is not None:
            self._cache.page_log.demanded(fresh)
        with self._cache._faults.handling(FaultKind.DEMAND, len(fresh)):
            touched = np.flatnonzero(new_pages)
            first = (-(-starts[touched] // self._layout.page_size)).tolist()
            counts = new_pages[touched]
            for group in range(self._layout.num_groups):
                share = fresh[group * int(counts.sum()) :]
                ends = np.cumsum(counts)
                self._rows.tail[group, rows[touched]] = share[ends - 1]
                if int(ends[-1]) == len(touched):  # a step that only decodes
                    for index, page, block in zip(touched.tolist(), first, share.tolist(), strict=False):
                        sequences[index].tables[group].map_one(page, block)
                    continue
                at = 0
                for index, page, count in zip(touched.tolist(), first, counts.tolist(), strict=True):
                    if count == 1:
                        sequences[index].tables[group].map_one(page, share[at])
                    else:
                        sequences[index].tables[group].map(page, share[at : at + count])
                    at += count

    def _close(self, step: Step, succeeded: bool) -> None:
        """Steps that share a sequence count in the order they were opened; one left early waits for those before it."""
        step.is_open = False
        step.has_succeeded = succeeded
        if len(self.open_steps) == 1:
            self._settle(step)
        else:
            self._settle_all_that_can()
        if self._cache.lower is not None:
            self._cache.lower.collect()
            self._cache.paging.settle()
        self._cache.retention.tick()
        self._cache._reclaimer.run_background()

    def _settle_all_that_can(self) -> None:
        waiting: set[Sequence] = set()
        for step in tuple(self.open_steps):
            if step.is_open or not waiting.isdisjoint(step.sequences):
                waiting.update(step.sequences)
            else:
                self._settle(step)

    def _settle(self, step: Step) -> None:
        self.open_steps.remove(step)
        rows = step.batch.rows
        if step.has_succeeded and self._settle_plainly(step):
            return
        self._rows.open_steps[rows] -= 1
        alive = self._rows.is_alive[rows]
        # Where an earlier step failed, the rows before this one's were never written: its tokens can't count either.
        counts = alive & step.has_succeeded & (self._rows.committed[rows] == step.batch.starts)
        is_special = self._rows.has_special(rows)
        self._commit(step, counts, is_special)
        if np.count_nonzero(counts) < len(counts):
            self._take_back(step, alive & ~counts)
        for blocks in step.held:
            self._cache.evictable.settled(self._pool.unpin(blocks).cached)
        if is_special:
            self._cache.paging.ended(step, counts)
        if np.count_nonzero(alive) < len(alive):  # last: a row that was given back tells nothing of its sequence
            for row in rows[~alive & (self._rows.open_steps[rows] == 0)].tolist():
                self._rows.give_back(row)

    def _settle_plainly(self, step: Step) -> bool:
        """The same where all of it counts, nothing is special and no window moves; False, with nothing changed, of any
        other step."""
        batch, cache = step.batch, self._cache
        if cache.has_windows or batch.query_lengths.dtype != np.int64 or (books := cache.books.native()) is None:
            return False
        growing = np.empty(batch.num_sequences, np.int64)
        settled = books.settle(batch.rows, batch.query_lengths, batch.starts, growing)
        if settled is None:
            return False
        num_growing, num_tokens = settled
        cache._computed_tokens += num_tokens
        if num_growing:
            publish_step(cache, step, growing[:num_growing])
        for blocks in step.held:
            cache.evictable.settled(self._pool.unpin(blocks).cached)
        return True

    def _commit(self, step: Step, counts: np.ndarray, is_special: bool) -> None:
        """``counts`` says which sequences of the step go on."""
        rows, stops = step.batch.rows, step.batch.stops
        self._rows.committed[rows[counts]] = stops[counts]
        self._cache._computed_tokens += int(step.batch.query_lengths[counts].sum())
        if is_special:
            self._cache.paging.computed(step, counts)
        full = np.minimum(stops // self._layout.page_size, self._rows.publish_until[rows])
        growing = np.flatnonzero(counts & (full > self._rows.published[rows]))
        if is_special and len(growing):
            growing = growing[[can_stand(step.sequences[at], int(full[at])) for at in growing.tolist()]]
        if len(growing):
            publish(self._cache, [step.sequences[at] for at in growing.tolist()], full[growing].tolist())
        for group, window in enumerate(self._windows):
            if window is not None:
                self._give_back_behind_window(step, counts, group, window)
        if self._has_only_windows:
            published, first_page = self._rows.published[rows], self._rows.first_page[:, rows].min(axis=0)
            for at in np.flatnonzero(counts & (published > 0) & (published <= first_page)).tolist():
                self._cache._leave_index(step.sequences[at])

    def _take_back(self, step: Step, failed: np.ndarray) -> None:
        """Nothing of these sequences' new tokens counts; their pages go when no other step holds them."""
        for at in np.flatnonzero(failed).tolist():
            seq = step.sequences[at]
            if self._rows.open_steps[seq.row] == 0:
                cut(self._cache, seq, seq.length)

    def _give_back_behind_window(self, step: Step, counts: np.ndarray, group: int, window: int) -> None:
        rows, page_size = step.batch.rows, self._layout.page_size
        stops = step.batch.stops
        visible = np.maximum(0, stops - window + 1 - self._rewind) // page_size
        last_full = np.maximum((stops - self._rewind) // page_size - 1, 0)  # stays: the sequence stands on its node
        needed = np.minimum(visible, last_full)
        first = self._rows.first_page[group, rows]
        for at in np.flatnonzero(counts & (needed > first)).tolist():
            seq = step.sequences[at]
            table = seq.tables[group]
            if self._rows.open_steps[seq.row]:
                table.detach()
            self._cache.paging.partings.unmapped(seq, group, int(first[at]), int(needed[at]))
            give_back(self._cache, seq, table.unmap(int(first[at]), int(needed[at])))
            self._rows.first_page[group, seq.row] = needed[at]
