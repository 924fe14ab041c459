"""SIEVE: a hand walks from the oldest page to the newest and takes the first that was not used since it last came by.

Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is simpler than LRU" (2024). Pages stay where they entered; the hand
forgets the uses of those it passes and begins anew at the oldest when it has passed the newest.

Leaf rule: the hand walks over leaves only, and moves when a victim is asked for. A page that is no leaf when the hand
comes by keeps its use, and one that becomes a leaf behind the hand waits for the next round.
"""

import numpy as np

from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.ranked_policy import RankedPolicy


class SIEVE(RankedPolicy):
    name = "sieve"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._is_used = self._column(False)
        self._passed = RankedLeaves()  # the leaves behind the hand; ``_leaves`` are those ahead of it
        self._hand = 0  # what is ahead has this rank or a higher one

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for now, block in enumerate(blocks.tolist(), self._now):
            self._rank[block] = now
            self._is_used[block] = False
        self._now += len(blocks)

    def hit(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)
        is_used = self._is_used
        for block in blocks.tolist():
            is_used[block] = True

    def offer(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            rank = self._rank[block]
            (self._leaves if rank >= self._hand else self._passed).offer(block, rank)

    def withdraw(self, blocks: np.ndarray) -> None:
        found = blocks.tolist()
        self._leaves.withdraw_all(found)
        self._passed.withdraw_all(found)

    def leave(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            if self._leaves.lowest() == block:
                self._hand = self._rank[block]
            self._leaves.withdraw(block)
            self._passed.withdraw(block)

    def victim(self) -> int | None:
        is_used = self._is_used
        while len(self._leaves) or len(self._passed):
            block = self._leaves.lowest()
            if block is None:
                self._leaves, self._passed, self._hand = self._passed, self._leaves, 0
            elif not is_used[block]:
                return block
            else:
                is_used[block] = False
                self._hand = self._leaves.hand_lowest_to(self._passed) + 1
        return None

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._passed.move(source, target)

    def check(self, offered: np.ndarray) -> None:
        is_passed = np.array([block in self._passed for block in offered.tolist()], bool)
        self._leaves.check(offered[~is_passed])
        self._passed.check(offered[is_passed])
