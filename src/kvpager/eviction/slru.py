"""SLRU: pages used once go first, so that a scan can't push out what is used again.

Karedla, Love and Wherry, "Caching strategies to improve disk system performance" (1994): a page enters a probationary
segment and moves to a protected one when it is used again. When that holds more than its share, its least recently
used page is the most recent of the probationary segment once more. Victims are the least recent of the probationary.

Leaf rule: segments hold all pages, victims are leaves; protected ones go where no probationary page is a leaf.
"""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy

PROTECTED_SHARE = 0.8
_PROTECTED = 1 << TIME_BITS  # in a rank: after all of the probationary segment


class SLRU(RankedPolicy):
    name = "slru"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._last = self._column(0)
        self._protected = RankedLeaves()  # all pages of the segment, by last use

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        last, used = self._last, blocks.tolist()
        for now, block in enumerate(used, self._now):
            last[block] = now
        self._now += len(used)
        self._protected.offer_all(used, last)
        self._shrink()

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, last, protected, used = self._rank, self._last, self._protected, blocks.tolist()
        for now, block in enumerate(used, self._now):
            last[block] = now
            rank[block] = _PROTECTED + now if block in protected else now
        self._now += len(used)
        protected.offer_all([block for block in used if rank[block] >= _PROTECTED], last)

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        self._protected.withdraw_all(blocks.tolist())

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._shrink()

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._protected.move(source, target)

    def _shrink(self) -> None:
        """What the protected segment holds beyond its share goes back to the probationary one."""
        while len(self._protected) > PROTECTED_SHARE * self._num_blocks:
            block = self._protected.lowest()
            assert block is not None
            self._protected.withdraw(block)
            self._rank[block] = self._now
            self._now += 1
            if block in self._leaves:
                self._leaves.offer(block, self._rank[block])
