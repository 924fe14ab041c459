"""Window: pages not used within the last W seconds go first, then those used least within them; ties by recency.

A use counts from when a request found or entered the page. The uses of the window are kept in order of time, at most
USES_PER_BLOCK times the number of blocks; where there were more, the oldest stop counting early. What expires is taken
off whenever pages are used or a victim is asked for.
"""

from collections import deque

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy
from kvpager.types import Clock

SECONDS = 600.0
USES_PER_BLOCK = 4


class Window(RankedPolicy):
    name = "window"

    def __init__(self, num_blocks: int, clock: Clock, seconds: float = SECONDS) -> None:
        super().__init__(num_blocks)
        self._clock = clock
        self._seconds = seconds
        self._uses = self._column(0)  # within the window
        self._last = self._column(0)
        self._page = self._column(0)  # a number for what the block holds; blocks are used again and renamed
        self._block_of: dict[int, int] = {}
        self._num_pages = 0
        self._times: deque[float] = deque()  # of the uses in the window,
        self._used: deque[int] = deque()  # and the pages used

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        entered = blocks.tolist()
        for page, block in enumerate(entered, self._num_pages):
            self._page[block] = page
            self._block_of[page] = block
            self._uses[block] = 0
        self._num_pages += len(entered)
        self._count(entered)

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        self._count(blocks.tolist())

    def release(self, blocks: np.ndarray, use: Use) -> None:
        last = self._last
        for now, block in enumerate(blocks.tolist(), self._now):
            last[block] = now
        self._now += len(blocks)

    def offer(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._leaves.offer(block, (self._uses[block] << TIME_BITS) + self._last[block])

    def victim(self) -> int | None:
        self._expire_until(self._clock() - self._seconds)
        return self._leaves.lowest()

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            self._block_of.pop(self._page[block], None)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._block_of[self._page[target]] = target

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._keep_within_limit()

    def _count(self, blocks: list[int]) -> None:
        time, uses, page = self._clock(), self._uses, self._page
        self._expire_until(time - self._seconds)
        self._times.extend([time] * len(blocks))
        for block in blocks:
            uses[block] += 1
            self._used.append(page[block])
        self._keep_within_limit()

    def _keep_within_limit(self) -> None:
        while len(self._times) > USES_PER_BLOCK * self._num_blocks:
            self._expire()

    def _expire_until(self, start: float) -> None:
        while self._times and self._times[0] < start:
            self._expire()

    def _expire(self) -> None:
        """The oldest use counts no more."""
        self._times.popleft()
        block = self._block_of.get(self._used.popleft())
        if block is not None:
            self._uses[block] -= 1
            if block in self._leaves:
                self._leaves.offer(block, (self._uses[block] << TIME_BITS) + self._last[block])
