"""Blocks by rank, the lowest first: what most policies keep the evictable ones in.

A heap of (rank, block) that is put right only where it is looked at. A block that is withdrawn, or offered again with a
higher rank, leaves its entry where it is, and that entry is dropped or sunk when it comes up; so a block whose rank
only ever rises has one entry. An entry below it is made when a rank falls, and the heap is rebuilt when most of it is
such doubles, so it stays within a fixed multiple of the blocks.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from kvpager.errors import InvariantError

_SLACK = 64  # entries the heap may hold beyond twice the blocks in it
Rank = float | tuple[float, float]


class RankedLeaves:
    """Empty at first. Ties go to the lower block number."""

    def __init__(self) -> None:
        self._rank: dict[int, Rank] = {}  # of the blocks offered
        self._heap: list[tuple[Rank, int]] = []
        self._entry: dict[int, Rank] = {}  # of the blocks in the heap: their lowest entry, at most their rank

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, block: int) -> bool:
        return block in self._rank

    @property
    def num_entries(self) -> int:
        """What the heap holds, old entries included."""
        return len(self._heap)

    def offer(self, block: int, rank: Rank) -> None:
        """``block`` has this rank now, offered before or not."""
        self._rank[block] = rank
        entry = self._entry.get(block)
        if entry is None or rank < entry:  # type: ignore[operator]
            self._entry[block] = rank
            heappush(self._heap, (rank, block))
            if len(self._heap) > 2 * len(self._entry) + _SLACK:
                self._rebuild()

    def withdraw(self, blocks: Iterable[int]) -> None:
        """These are not offered, whether they were or not."""
        take_out = self._rank.pop
        for block in blocks:
            take_out(block, None)

    def lowest(self) -> int | None:
        heap, ranks = self._heap, self._rank
        while heap:
            entry, block = heap[0]
            rank = ranks.get(block)
            if rank == entry:
                return block
            if self._entry.get(block) != entry:
                heappop(heap)  # a double
            elif rank is None:
                heappop(heap)
                del self._entry[block]
            else:
                heapreplace(heap, (rank, block))
                self._entry[block] = rank
        return None

    def lowest_rank(self) -> Rank | None:
        """The rank of ``lowest()``."""
        return None if self.lowest() is None else self._heap[0][0]

    def move(self, source: int, target: int) -> None:
        if source in self._rank:
            self.offer(target, self._rank.pop(source))

    def check(self, offered: np.ndarray) -> None:
        """Raises InvariantError unless exactly the blocks ``offered`` are."""
        if sorted(self._rank) != sorted(offered.tolist()):
            raise InvariantError("a policy does not offer exactly the evictable blocks")
        if not {(rank, block) for block, rank in self._entry.items()}.issubset(self._heap):
            raise InvariantError("the order of the evictable blocks lost one")
        if any(self._entry[block] > rank for block, rank in self._rank.items()):  # type: ignore[operator]
            raise InvariantError("an evictable block is ordered too high")

    def _rebuild(self) -> None:
        self._entry = dict(self._rank)
        self._heap = [(rank, block) for block, rank in self._rank.items()]
        heapify(self._heap)
