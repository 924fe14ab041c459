"""SLRU: pages used once go first, so that a scan can't push out what is used again.

Karedla, Love and Wherry, "Caching strategies to improve disk system performance" (1994): a page enters a probationary
segment and moves to a protected one when it is used again. When that holds more than its share, its least recently
used page is the most recent of the probationary segment once more. Victims are the least recent of the probationary.

Leaf rule: segments hold all pages, victims are leaves; protected ones go where no probationary page is a leaf.
"""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy
from kvpager.eviction.recency import Recency

PROTECTED_SHARE = 0.8
_PROTECTED = 1 << TIME_BITS  # in a rank: after all of the probationary segment


class SLRU(RankedPolicy):
    name = "slru"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._protected = Recency(num_blocks)  # all pages of the segment

    def hit(self, blocks: np.ndarray) -> None:
        found = blocks.tolist()
        self._leaves.withdraw_all(found)
        self._protected.use(found)
        self._shrink()

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, protected, let_go = self._rank, self._protected, blocks.tolist()
        protected.use([block for block in let_go if block in protected])
        for now, block in enumerate(let_go, self._now):
            rank[block] = now + _PROTECTED if block in protected else now
        self._now += len(let_go)

    def leave(self, blocks: np.ndarray) -> None:
        gone = blocks.tolist()
        self._leaves.withdraw_all(gone)
        self._protected.take_out(gone)

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._protected.resize(num_blocks)
        self._shrink()

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._protected.move(source, target)

    def _shrink(self) -> None:
        """What the protected segment holds beyond its share goes back to the probationary one."""
        surplus = len(self._protected) - int(PROTECTED_SHARE * self._num_blocks)
        moved = self._protected.pop_oldest(max(0, surplus))
        for now, block in enumerate(moved, self._now):
            self._rank[block] = now
        self._now += len(moved)
        self._leaves.offer_all(self._leaves.among(moved), self._rank)
