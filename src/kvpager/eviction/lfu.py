"""LFU with dynamic aging: the page used least goes first, where old uses weigh less.

Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating content management techniques for Web proxy caches" (2000),
LFU-DA: a page's worth is its uses plus the age of the cache when it was last used; the age is the worth of the last
victim. So a page that was popular once is overtaken by new ones in the end. Uses are forgotten when a page goes. Ties
go by recency.

Leaf rule: the age is the highest worth of a victim so far, since a page that had to wait for those below it may be
worth less than a victim before it.
"""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy


class LFU(RankedPolicy):
    name = "lfu"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._uses = self._column(0)
        self._age = 0

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block in blocks.tolist():
            self._uses[block] = 1

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        uses = self._uses
        for block in blocks.tolist():
            uses[block] += 1

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, uses, age = self._rank, self._uses, self._age
        for now, block in enumerate(blocks.tolist(), self._now):
            rank[block] = ((age + uses[block]) << TIME_BITS) + now
        self._now += len(blocks)

    def leave(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            if self._leaves.lowest() == block:
                self._age = max(self._age, self._rank[block] >> TIME_BITS)
            self._leaves.withdraw(block)
