"""LRU: the least recently used page goes first.

Pages of one request count from its end, the last page as the least recent, and a page that becomes a leaf counts from
its own last use.
"""

from array import array

import numpy as np

from kvpager import native
from kvpager.errors import InvariantError
from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.ranked_policy import RankedPolicy


class LRU(RankedPolicy):
    name = "lru"
    ignores_use = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        if (leaves := getattr(native.module(), "RankedLeaves", None)) is not None:
            self._leaves = leaves(num_blocks)
        self.ranks = array("q", [0]) * num_blocks  # those of a run are written at once
        self._rank = self.ranks
        self._columns = [(self.ranks, 0)]
        self.clock = array("q", [0])  # one number, which the native kernels count on

    @property
    def now(self) -> int:
        """Counts uses of blocks."""
        return self.clock[0]

    def release(self, blocks: np.ndarray, use: Use) -> None:
        np.frombuffer(self.ranks, np.int64)[blocks] = np.arange(self.now, self.now + len(blocks))
        self.clock[0] += len(blocks)

    def resize(self, num_blocks: int) -> None:
        """Lays the ranks out anew: native kernels hold the old ones, which then can't grow."""
        self._num_blocks = num_blocks
        kept = self.ranks[:num_blocks]
        self.ranks = self._rank = kept + array("q", [0]) * (num_blocks - len(kept))
        self._columns = [(self.ranks, 0)]

    def check(self, offered: np.ndarray) -> None:
        if isinstance(self._leaves, RankedLeaves):
            super().check(offered)
        elif sorted(self._leaves.ordered()) != sorted(offered.tolist()):
            raise InvariantError("a policy does not offer exactly the evictable blocks")
