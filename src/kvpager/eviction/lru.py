"""LRU: the least recently used page goes first.

Pages of one request count from its end, the last page as the least recent, and a page that becomes a leaf counts from
its own last use.
"""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import RankedPolicy


class LRU(RankedPolicy):
    name = "lru"

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank = self._rank
        for now, block in enumerate(blocks.tolist(), self._now):
            rank[block] = now
        self._now += len(blocks)
