"""Priority: pages of the least important requests go first, the least recently used of them before the others.

A page has the priority of the request that used it last. A page with others below it waits for these, whatever its
priority.
"""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy


class Priority(RankedPolicy):
    name = "priority"

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, base = self._rank, use.priority << TIME_BITS
        for now, block in enumerate(blocks.tolist(), self._now):
            rank[block] = base + now
        self._now += len(blocks)
