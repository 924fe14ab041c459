"""LRU-2: the page whose last use but one is longest ago goes first; pages used once go before all others.

O'Neil, O'Neil and Weikum, "The LRU-K page replacement algorithm for database disk buffering" (1993), with K = 2 and LRU
among pages of equal rank. References within one request are correlated and count once: a use lasts until the request
lets go, and it is from there that the next one is told apart. The history of a page outlives it, for the last pages
gone.
"""

import numpy as np

from kvpager.eviction.ghosts import Ghosts
from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy

HISTORY = 4  # pages gone that are remembered, for each block
_NEVER = 0  # before every use


class LRUK(RankedPolicy):
    name = "lru_k"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._now = 1
        self._last = self._column(_NEVER)  # when its latest use ended; began, while it lasts
        self._last_but_one = self._column(_NEVER)
        self._key = self._column(0)
        self._history = Ghosts(HISTORY * num_blocks)

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            self._key[block] = key
            self._last_but_one[block] = self._history.pop(key, _NEVER)
            self._last[block] = self._now
        self._now += 1

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        last, last_but_one = self._last, self._last_but_one
        for block in blocks.tolist():
            last_but_one[block] = last[block]
            last[block] = self._now
        self._now += 1

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, last, last_but_one = self._rank, self._last, self._last_but_one
        for now, block in enumerate(blocks.tolist(), self._now):
            last[block] = now
            rank[block] = (last_but_one[block] << TIME_BITS) + now
        self._now += len(blocks)

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            self._history.add(self._key[block], self._last[block])

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._history.resize(HISTORY * num_blocks)
