"""Blocks by rank, the lowest first: what most policies keep the evictable ones in.

A heap that is put right only where it is looked at. A block that is withdrawn, or offered again with a higher rank,
leaves its entry where it is, and that entry is dropped or sunk when it comes up; so a block whose rank only ever rises
has one entry. An entry below it is made when a rank falls, and the heap is rebuilt when most of it is such doubles, so
it stays within a fixed multiple of the blocks.

Ranks are whole numbers, and an entry is one number of rank and block: quick to compare, and nothing that the garbage
collector looks at, however many there are.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from kvpager.errors import InvariantError

_SLACK = 64  # entries the heap may hold beyond twice the blocks in it
_BLOCK_BITS = 32
_BLOCK = 2**_BLOCK_BITS - 1


class RankedLeaves:
    """Empty at first. Ties go to the lower block number."""

    def __init__(self) -> None:
        self._offered: dict[int, int] = {}  # block -> its entry, if the heap were put right
        self._lowest_of: dict[int, int] = {}  # block -> its lowest entry in the heap, at most that
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._offered)

    def __contains__(self, block: int) -> bool:
        return block in self._offered

    def offer(self, block: int, rank: int) -> None:
        """``block`` has this rank now, offered before or not."""
        self._offered[block] = entry = (rank << _BLOCK_BITS) | block
        if self._lowest_of.get(block, entry + 1) > entry:
            self._lowest_of[block] = entry
            heappush(self._heap, entry)
            if len(self._heap) > 2 * len(self._lowest_of) + _SLACK:
                self._rebuild()

    def offer_all(self, blocks: Iterable[int], rank_of: list[int]) -> None:
        """``offer`` of many, with ranks from a column."""
        offered, heap, lowest_of = self._offered, self._heap, self._lowest_of
        for block in blocks:
            offered[block] = entry = (rank_of[block] << _BLOCK_BITS) | block
            if lowest_of.get(block, entry + 1) > entry:
                lowest_of[block] = entry
                heappush(heap, entry)
        if len(heap) > 2 * len(lowest_of) + _SLACK:
            self._rebuild()

    def withdraw(self, block: int) -> None:
        """Not offered now, whether it was or not."""
        self._offered.pop(block, None)

    def withdraw_all(self, blocks: Iterable[int]) -> None:
        take_out = self._offered.pop
        for block in blocks:
            take_out(block, None)

    def lowest(self) -> int | None:
        heap, offered = self._heap, self._offered
        while heap:
            entry = heap[0]
            block = entry & _BLOCK
            right = offered.get(block)
            if right == entry:
                return block
            if self._lowest_of.get(block) != entry:
                heappop(heap)  # a double
            elif right is None:
                heappop(heap)
                del self._lowest_of[block]
            else:
                heapreplace(heap, right)
                self._lowest_of[block] = right
        return None

    def move(self, source: int, target: int) -> None:
        if source in self._offered:
            self.offer(target, self._offered.pop(source) >> _BLOCK_BITS)

    def check(self, offered: np.ndarray) -> None:
        """Raises InvariantError unless exactly the blocks ``offered`` are."""
        if sorted(self._offered) != sorted(offered.tolist()):
            raise InvariantError("a policy does not offer exactly the evictable blocks")
        if not set(self._lowest_of.values()).issubset(self._heap):
            raise InvariantError("the order of the evictable blocks lost one")
        if any(self._lowest_of[block] > entry for block, entry in self._offered.items()):
            raise InvariantError("an evictable block is ordered too high")

    def _rebuild(self) -> None:
        self._lowest_of = dict(self._offered)
        self._heap = list(self._offered.values())
        heapify(self._heap)
