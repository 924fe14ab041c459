"""Least recently used: the block that was let go longest ago goes first."""

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_leaves import RankedLeaves


class LRU:
    name = "lru"
    uses_keys = False

    def __init__(self, num_blocks: int) -> None:
        self._stamps = np.zeros(num_blocks, np.int64)  # when the block was let go, in blocks let go
        self._clock = 0
        self._leaves = RankedLeaves()

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        pass

    def hit(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)

    def release(self, blocks: np.ndarray, use: Use) -> None:
        self._stamps[blocks] = np.arange(self._clock, self._clock + len(blocks))
        self._clock += len(blocks)

    def offer(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._leaves.offer(block, int(self._stamps[block]))

    def withdraw(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._leaves.withdraw(block)

    def victim(self) -> int | None:
        return self._leaves.lowest()

    def leave(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)

    def resize(self, num_blocks: int) -> None:
        kept = self._stamps[:num_blocks]
        self._stamps = np.concatenate([kept, np.zeros(num_blocks - len(kept), np.int64)])

    def move(self, source: int, target: int) -> None:
        self._stamps[target] = self._stamps[source]
        self._leaves.move(source, target)

    def check(self, offered: np.ndarray) -> None:
        self._leaves.check(offered)
