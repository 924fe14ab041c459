"""GDSF: LFU with aging in which a use weighs as much as recomputing the page takes.

Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy" (1998): worth = age +
uses x cost / size. All pages have the same size. A page costs more the deeper it lies in its prompt, since its tokens
attend to all before them: in proportion to DEPTH_OF_DOUBLE + depth.

A page's depth is its distance from the end of the batch it is released in, which holds its request's pages from the
last to the first. Pages that another request still holds are missing there, so the largest depth seen counts: exact as
soon as a request was alone in holding its prefix.
"""

import numpy as np

from kvpager.eviction.lfu import LFU
from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS

DEPTH_OF_DOUBLE = 1000  # pages; attention over 16,000 tokens costs about as much as the matrices of a small model


class GDSF(LFU):
    name = "gdsf"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._depth = self._column(0)

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        super().enter(blocks, keys)
        for block in blocks.tolist():
            self._depth[block] = 0

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, uses, depths, age = self._rank, self._uses, self._depth, self._age
        now, depth = self._now, len(blocks)
        for block in blocks.tolist():
            depth -= 1
            if depth > depths[block]:
                depths[block] = depth
            rank[block] = ((age + uses[block] * (DEPTH_OF_DOUBLE + depths[block])) << TIME_BITS) + now
            now += 1
        self._now = now
