"""FIFO: the page that came first goes first, used or not.

Of the pages that may go: a page that came early but has others below it goes as soon as these have gone.
"""

import numpy as np

from kvpager.eviction.ranked_policy import RankedPolicy


class FIFO(RankedPolicy):
    name = "fifo"

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        rank = self._rank
        for now, block in enumerate(blocks.tolist(), self._now):
            rank[block] = now
        self._now += len(blocks)
