"""Opens and closes steps: faults are resolved before anything is computed, and what was computed counts afterwards.

    open     check, page out (sequences with a resident limit), copy on write, map new pages
    close    commit, publish, give back what no later step needs; or take all of it back

Steps that share a sequence count in the order in which they were opened. It takes and gives back blocks through the
cache, whose thread calls it.
"""

from collections.abc import Sequence as List
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.publishing import publish
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step, StepBatch
from kvpager.errors import ConfigError
from kvpager.types import FaultKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_UNBOUNDED = np.iinfo(np.int64).max
_cache_of = attrgetter("_cache")
_row_of = attrgetter("row")


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

    def open(self, sequences: List[Sequence], counts: np.ndarray) -> Step:
        """See PagedCache.step_over."""
        rows = np.fromiter(map(_row_of, sequences), np.int64, len(sequences))
        self._check(sequences, rows, counts)
        is_special = self._rows.has_special(rows)
        if is_special:
            self._cache.paging.make_room(sequences, counts.tolist())
        page_size, num_groups = self._layout.page_size, self._layout.num_groups
        starts = self._rows.reserved[rows]
        stops = starts + counts
        new_pages = -(-stops // page_size) + (-starts // page_size)
        copies = self._pages_to_copy(rows, starts)
        fresh = self._cache._take(int(new_pages.sum()) * num_groups + len(copies))
        if copies:
            self._copy_on_write(sequences, starts, copies, fresh[: len(copies)])
        if len(fresh) > len(copies):
            self._map_new_pages(sequences, rows, starts, new_pages, fresh[len(copies) :])
        self._rows.reserved[rows] = stops
        self._rows.open_steps[rows] += 1
        tables = tuple(tuple(seq.tables[g].snapshot() for seq in sequences) for g in range(num_groups))
        batch = StepBatch(self._layout, rows, starts, counts, tables, self._rows.tail[:, rows])
        if is_special:
            batch = self._cache.paging.described(batch, sequences)
        step = Step(tuple(sequences), batch, self._close)
        self.open_steps.append(step)
        return step

    def _check(self, sequences: List[Sequence], rows: np.ndarray, counts: np.ndarray) -> None:
        if len(sequences) == 0:
            raise ConfigError("a step needs at least one sequence")
        if (counts < 1).any():
            raise ConfigError("every sequence of a step needs at least one new token; leave out the others")
        if rows.min() < 0 or set(map(_cache_of, sequences)) != {self._cache}:
            for seq in sequences:
                self._cache.check_usable(seq)
        known = np.array([_UNBOUNDED if (ids := seq.tokens) is None else len(ids) for seq in sequences])
        stops = self._rows.reserved[rows] + counts
        if (stops > known).any():
            at = int(np.argmax(stops > known))
            raise ConfigError(
                f"a step of {counts[at]} tokens from position {stops[at] - counts[at]} needs {stops[at]} token ids, "
                f"but the sequence has {known[at]}; append them first"
            )

    def _pages_to_copy(self, rows: np.ndarray, starts: np.ndarray) -> list[tuple[int, int]]:
        """(group, index) of each last page that is begun, and shared or published, so that writing it copies it."""
        partial = starts % self._layout.page_size != 0
        if not partial.any():
            return []
        tails = self._rows.tail[:, rows]
        protected = self._pool.is_write_protected(tails) & partial
        if not protected.any():
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
                self._cache._repoint(sequences[at], group, int(starts[at]) // self._layout.page_size, source, target)

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
        self._rows.open_steps[rows] -= 1
        alive = self._rows.is_alive[rows]
        if not alive.all():
            for row in rows[~alive & (self._rows.open_steps[rows] == 0)].tolist():
                self._rows.give_back(row)
        # Where an earlier step failed, the rows before this one's were never written: its tokens can't count either.
        counts = alive & step.has_succeeded & (self._rows.committed[rows] == step.batch.starts)
        is_special = self._rows.has_special(rows)
        self._commit(step, counts, is_special)
        if not counts.all():
            self._take_back(step, alive & ~counts)
        for blocks in step.held:
            self._cache.evictable.settled(self._pool.unpin(blocks).cached)
        if is_special:
            self._cache.paging.ended(step, counts)

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
            growing = growing[[self._cache._can_stand(step.sequences[at], int(full[at])) for at in growing.tolist()]]
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
                self._cache._cut(seq, seq.length)

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
            self._cache._give_back(seq, table.unmap(int(first[at]), int(needed[at])))
            self._rows.first_page[group, seq.row] = needed[at]
