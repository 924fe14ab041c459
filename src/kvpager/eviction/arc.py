"""ARC: balances recency and frequency by what it evicted too early.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (2003): T1 holds pages used once, T2 those used
again, both by recency; B1 and B2 remember keys of pages that left them. A page that comes back out of B1 raises the
share of T1, one out of B2 lowers it. T1 gives the victim while it holds more than its share, else T2.

A victim is asked for before it is known what comes in, so the share moves after the victim, and the paper's special
case of T1 at exactly its share when a page of B2 comes in is left out. Leaf rule: T1 and T2 hold all pages; where the
list whose turn it is has no leaf, the other gives one.
"""

import numpy as np

from kvpager.eviction.ghosts import Ghosts
from kvpager.eviction.policy import Use
from kvpager.eviction.queued_policy import QueuedPolicy

_ONCE, _AGAIN = 0, 1  # T1, T2


class ARC(QueuedPolicy):
    name = "arc"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._key = self._column(0)
        self._share = 0.0  # pages that T1 should hold
        self._ghosts = (Ghosts(num_blocks), Ghosts(2 * num_blocks))

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            self._key[block] = key
            self._put(block, self._queue_for(key))

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        queue_of = self._queue_of
        for block in blocks.tolist():
            if queue_of[block] == _ONCE:
                self._sizes[_ONCE] -= 1
                self._put(block, _AGAIN)

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank = self._rank
        for now, block in enumerate(blocks.tolist(), self._now):
            rank[block] = now
        self._now += len(blocks)

    def victim(self) -> int | None:
        first = _ONCE if self._sizes[_ONCE] > self._share else _AGAIN
        block = self._queues[first].lowest()
        return self._queues[1 - first].lowest() if block is None else block

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            self._ghosts[self._queue_of[block]].add(self._key[block])

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._share = min(self._share, num_blocks)
        self._ghosts[_ONCE].resize(max(0, num_blocks - self._sizes[_ONCE]))
        self._ghosts[_AGAIN].resize(max(0, 2 * num_blocks - sum(self._sizes) - len(self._ghosts[_ONCE])))
        self._ghosts[_ONCE].resize(num_blocks)
        self._ghosts[_AGAIN].resize(2 * num_blocks)

    def _queue_for(self, key: int) -> int:
        """Where new content goes; moves the share, or makes room for one more ghost."""
        once, again = self._ghosts
        if key in once:
            self._share = min(self._num_blocks, self._share + max(1.0, len(again) / len(once)))
            del once[key]
            return _AGAIN
        if key in again:
            self._share = max(0.0, self._share - max(1.0, len(once) / len(again)))
            del again[key]
            return _AGAIN
        if once and self._sizes[_ONCE] + len(once) >= self._num_blocks:
            once.drop_oldest()
        elif again and sum(self._sizes) + len(once) + len(again) >= 2 * self._num_blocks:
            again.drop_oldest()
        return _ONCE
