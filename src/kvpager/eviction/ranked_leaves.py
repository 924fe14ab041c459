"""Blocks by rank, the lowest first: what most policies keep the evictable ones in.

A sorted list in runs of bounded length, so that putting a block in or taking it out moves part of one run, wherever its
rank is, and the lowest is always at the front. A heap that is put right when it is asked is as quick on average, but
now and then one question pays for many blocks that were withdrawn before it.

Ranks are whole numbers, and an entry is one number of rank and block: quick to compare, and nothing that the garbage
collector looks at, however many there are.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from kvpager.errors import InvariantError

_RUN = 256  # entries, at most: moving them costs less than finding the place
_BLOCK_BITS = 32
_BLOCK = 2**_BLOCK_BITS - 1


class RankedLeaves:
    """Empty at first. Ties go to the lower block number."""

    def __init__(self) -> None:
        self._offered: dict[int, int] = {}  # block -> its entry
        self._runs: list[list[int]] = []  # of entries, none is empty
        self._ends: list[int] = []  # the last entry of each run

    def __len__(self) -> int:
        return len(self._offered)

    def __contains__(self, block: int) -> bool:
        return block in self._offered

    def among(self, blocks: Iterable[int]) -> list[int]:
        """Those of ``blocks`` that are offered."""
        offered = self._offered
        return [block for block in blocks if block in offered]

    def offer(self, block: int, rank: int) -> None:
        """``block`` has this rank now, offered before or not."""
        entry = (rank << _BLOCK_BITS) | block
        ends = self._ends
        if ends and entry > ends[-1] and block not in self._offered and len(run := self._runs[-1]) < _RUN:
            run.append(entry)  # what was used last mostly goes last
            ends[-1] = self._offered[block] = entry
            return
        before = self._offered.get(block)
        if before is not None:
            if before == entry:
                return
            self._take_out(before)
        self._put_in(block, entry)

    def offer_all(self, blocks: Iterable[int], rank_of: Sequence[int]) -> None:
        """``offer`` of many, with ranks from a column."""
        for block in blocks:
            self.offer(block, rank_of[block])

    def withdraw(self, block: int) -> None:
        """Not offered now, whether it was or not."""
        entry = self._offered.pop(block, None)
        if entry is None:
            return
        run = self._runs[0]
        if len(run) > 1 and run[0] == entry:  # what leaves mostly is the lowest
            del run[0]
        else:
            self._take_out(entry)

    def withdraw_all(self, blocks: Iterable[int]) -> None:
        pop = self._offered.pop
        for block in blocks:
            entry = pop(block, None)
            if entry is not None:
                self._take_out(entry)

    def lowest(self) -> int | None:
        return self._runs[0][0] & _BLOCK if self._runs else None

    def ordered(self) -> list[int]:
        """All that are offered, the lowest first."""
        return [entry & _BLOCK for run in self._runs for entry in run]

    def hand_lowest_to(self, other: "RankedLeaves") -> int:
        """It is offered there instead, with the rank it has, which is returned. REQUIRES: here is one and not there."""
        run = self._runs[0]
        entry = run.pop(0)
        if not run:
            del self._runs[0], self._ends[0]
        block = entry & _BLOCK
        del self._offered[block]
        other._put_in(block, entry)
        return entry >> _BLOCK_BITS

    def move(self, source: int, target: int) -> None:
        if source in self._offered:
            rank = self._offered[source] >> _BLOCK_BITS
            self.withdraw(source)
            self.offer(target, rank)

    def check(self, offered: np.ndarray) -> None:
        """Raises InvariantError unless exactly the blocks ``offered`` are."""
        if sorted(self._offered) != sorted(offered.tolist()):
            raise InvariantError("a policy does not offer exactly the evictable blocks")
        ordered = [entry for run in self._runs for entry in run]
        if ordered != sorted(self._offered.values()) or self._ends != [run[-1] for run in self._runs]:
            raise InvariantError("the order of the evictable blocks is wrong")

    def _put_in(self, block: int, entry: int) -> None:
        self._offered[block] = entry
        ends = self._ends
        at = bisect_left(ends, entry)
        if at < len(ends):
            run = self._runs[at]
            insort(run, entry)
            if len(run) > _RUN:
                self._split(at)
        elif ends:
            run = self._runs[-1]
            run.append(entry)
            ends[-1] = entry
            if len(run) > _RUN:
                self._split(at - 1)
        else:
            self._runs.append([entry])
            ends.append(entry)

    def _take_out(self, entry: int) -> None:
        at = bisect_left(self._ends, entry)
        run = self._runs[at]
        if run[0] == entry:
            del run[0]
            if not run:
                del self._runs[at], self._ends[at]
            return
        place = bisect_left(run, entry)
        del run[place]
        if place == len(run):
            self._ends[at] = run[-1]

    def _split(self, at: int) -> None:
        """Run ``at`` is too long. Where short ones have become many, all are laid out anew."""
        if len(self._runs) * _RUN > 8 * len(self._offered):
            ordered = [entry for run in self._runs for entry in run]
            half = _RUN // 2
            self._runs[:] = [ordered[begin : begin + half] for begin in range(0, len(ordered), half)]
            self._ends[:] = [run[-1] for run in self._runs]
            return
        run = self._runs[at]
        middle = len(run) // 2
        self._runs.insert(at + 1, run[middle:])
        del run[middle:]
        self._ends.insert(at, run[-1])
