"""Contiguous allocation, what paging is compared with: each sequence has one run of consecutive blocks, from its start
to its end, as long as it may ever get.

    block    0    1    2    3    4    5    6    7    8
           [ sequence A        ]           [ sequence B ]
           used used  -    -   free free  used used  -        -: reserved and not touched yet; nobody else gets it

Pool, tables, steps and kernels are those of a paged cache, and a block is used once its page is touched; but pages take
the blocks of the run in order, and nothing is shared, forked, grown, moved or preempted. A run goes to the first place
where it fits. It knows the pool and no sequence but by its row; how long a run has to be is the caller's business.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.errors import ConfigError, InvariantError, OutOfBlocks
from kvpager.memory.block import BlockState
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.contiguous import first_fit, longest_run


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Blocks ``reserved`` by ``runs`` now, touched or not; ``free`` are in none, ``longest`` of them consecutive."""

    runs: int
    reserved: int
    free: int
    longest: int

    def __str__(self) -> str:
        return (
            f"runs     {self.reserved} blocks reserved by {self.runs} sequences; {self.free} others, at most "
            f"{self.longest} of them side by side"
        )


class RunPlan:
    """Which runs would fit one after the other. Takes nothing from the pool."""

    def __init__(self, is_free: np.ndarray) -> None:
        self._is_free = is_free

    def take(self, num_blocks: int) -> bool:
        """Whether one more run of so many blocks fits; if so, the next question counts it as taken."""
        start = first_fit(self._is_free, num_blocks)
        if start is not None:
            self._is_free[start : start + num_blocks] = False
        return start is not None


class Runs:
    """Of one pool whose blocks are given out in no other way."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._is_reserved = np.zeros(pool.num_blocks, np.bool_)
        self._runs: dict[int, range] = {}  # row of a sequence -> its blocks

    def plan(self) -> RunPlan:
        return RunPlan(self._is_free())

    def statistics(self) -> RunStatistics:
        is_free = self._is_free()
        reserved = sum(len(run) for run in self._runs.values())
        return RunStatistics(len(self._runs), reserved, int(is_free.sum()), longest_run(is_free))

    def length(self, row: int) -> int:
        """Blocks of a sequence's run, touched or not; 0 where it has none."""
        return len(self._runs.get(row, ()))

    def reserve(self, row: int, num_blocks: int) -> None:
        """Gives a new sequence its run. Raises OutOfBlocks where there is none, however many blocks are free."""
        if row in self._runs:
            raise InvariantError(f"sequence {row} has a run already")
        is_free = self._is_free()
        start = first_fit(is_free, num_blocks)
        if start is None:
            counts = self._pool.counts()
            raise OutOfBlocks(num_blocks, longest_run(is_free), counts.pinned, 0, counts.total)
        self._runs[row] = range(start, start + num_blocks)
        self._is_reserved[start : start + num_blocks] = True

    def release(self, row: int) -> None:
        """The sequence is freed: its run is no more. Blocks that an open step holds are free when that has ended."""
        run = self._runs.pop(row, None)
        if run is not None:
            self._is_reserved[run.start : run.stop] = False

    def take(self, rows: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Blocks for ``counts[i]`` pages from page ``first[i]`` on of each sequence, one after the other.

        Raises ConfigError, with nothing taken, for pages behind the end of a run.
        """
        blocks: list[int] = []
        for at in np.flatnonzero(counts).tolist():
            row, page, count = int(rows[at]), int(first[at]), int(counts[at])
            run = self._runs.get(row, range(0))
            if page + count > len(run):
                raise ConfigError(
                    f"a sequence of {page + count} pages has a run of {len(run)} blocks, and contiguous allocation "
                    "grows none: reserve as many as it may ever need when it begins"
                )
            blocks += run[page : page + count]
        ids = np.array(blocks, np.int32)
        self._pool.allocate_these(ids)
        return ids

    def check(self, rows: dict[int, np.ndarray]) -> None:
        """Raises InvariantError unless runs are apart, and pages lie in them in order. ``rows``: blocks of each
        sequence, by page."""
        reserved = np.zeros(self._pool.num_blocks, np.int32)
        for row, run in self._runs.items():
            reserved[run.start : run.stop] += 1
            if row not in rows or rows[row].tolist() != list(run[: len(rows[row])]):
                raise InvariantError(f"the pages of sequence {row} do not lie in its run {run}")
        if (reserved > 1).any() or (reserved.astype(np.bool_) != self._is_reserved).any():
            raise InvariantError("runs overlap, or the blocks noted as reserved are not theirs")

    def _is_free(self) -> np.ndarray:
        return (self._pool.states() == BlockState.FREE) & ~self._is_reserved
