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
        self._page = self._column(0)  # a number for what the block holds
        self._num_pages = 0
        self._protected = Recency()  # all pages of the segment

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        page_in = self._page
        for page, block in enumerate(blocks.tolist(), self._num_pages):
            page_in[block] = page
        self._num_pages += len(blocks)

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        page_in, protected = self._page, self._protected
        use = protected.move_to_end
        for block in blocks.tolist():
            page = page_in[block]
            protected[page] = block
            use(page)
        self._shrink()

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, page_in, protected = self._rank, self._page, self._protected
        for now, block in enumerate(blocks.tolist(), self._now):
            page = page_in[block]
            if page in protected:
                protected.move_to_end(page)
                rank[block] = _PROTECTED + now
            else:
                rank[block] = now
        self._now += len(blocks)

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            self._protected.pop(self._page[block], None)

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._shrink()

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._protected.rename(self._page[target], target)

    def _shrink(self) -> None:
        """What the protected segment holds beyond its share goes back to the probationary one."""
        while len(self._protected) > PROTECTED_SHARE * self._num_blocks:
            block = self._protected.pop_oldest()
            self._rank[block] = self._now
            self._now += 1
            if block in self._leaves:
                self._leaves.offer(block, self._rank[block])
