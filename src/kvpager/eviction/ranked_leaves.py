"""The evictable blocks, lowest rank first: what most policies keep their order in.

A heap of (rank, block) in which an entry counts only while its block is offered with just that rank. Entries that do
not are dropped when they come up, and the heap is rebuilt when most of it is old, so it stays within a fixed multiple
of the number of blocks.
"""

from heapq import heapify, heappop, heappush

import numpy as np

from kvpager.errors import InvariantError

_SLACK = 64  # entries the heap may hold beyond four times the blocks offered
Rank = float | tuple[float, float]


class RankedLeaves:
    """Blocks 0 .. num_blocks-1, none of them offered. Ties go to the lower block number."""

    def __init__(self) -> None:
        self._rank: dict[int, Rank] = {}  # of the blocks offered
        self._heap: list[tuple[Rank, int]] = []

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, block: int) -> bool:
        return block in self._rank

    def offer(self, block: int, rank: Rank) -> None:
        """``block`` has this rank now, offered before or not."""
        if self._rank.get(block) == rank:
            return
        self._rank[block] = rank
        heappush(self._heap, (rank, block))
        if len(self._heap) > 4 * len(self._rank) + _SLACK:
            self._rebuild()

    def withdraw(self, block: int) -> None:
        self._rank.pop(block, None)

    def lowest(self) -> int | None:
        heap, rank = self._heap, self._rank
        while heap:
            value, block = heap[0]
            if rank.get(block) == value:
                return block
            heappop(heap)
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
        if {(rank, block) for block, rank in self._rank.items()}.difference(self._heap):
            raise InvariantError("the order of the evictable blocks lost one")

    def _rebuild(self) -> None:
        self._heap = [(rank, block) for block, rank in self._rank.items()]
        heapify(self._heap)
