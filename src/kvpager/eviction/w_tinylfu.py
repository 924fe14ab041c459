"""W-TinyLFU: new pages pass through a small window, and stay only if they are used more often than what they replace.

Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy" (2017): a window of 1 % of the cache
under LRU, a main part under SLRU, and a sketch of how often keys were seen, present or not. What falls out of the
window meets the main part's victim; the one seen less often goes, the newcomer where they are equal.

Nothing moves when a victim is asked for: if the main part's page goes, the next page to enter pushes the window's least
recent into the room it left. Leaf rule: both parts hold all pages, and the least recent leaf of each stands for its
least recent page; where only one has a leaf, that goes.
"""

import numpy as np

from kvpager.eviction.frequency_sketch import Cells, FrequencySketch
from kvpager.eviction.policy import Use
from kvpager.eviction.queued_policy import QueuedPolicy
from kvpager.eviction.ranked_leaves import RankedLeaves

WINDOW_SHARE = 0.01
PROTECTED_SHARE = 0.8  # of the main part
_WINDOW, _MAIN = 0, 1
_PROBATIONARY, _PROTECTED = 0, 1  # first part of a rank in the main part
_NOWHERE: Cells = (0, 0, 0, 0)


class WTinyLFU(QueuedPolicy):
    name = "w_tinylfu"

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._key = self._column(0)
        self._cells = self._column(_NOWHERE)  # of the key
        self._window = RankedLeaves()  # all its pages, by last use
        self._protected = RankedLeaves()  # all its pages, by last use
        self._sketch = FrequencySketch(num_blocks)
        self._set_sizes()

    def _set_sizes(self) -> None:
        self._window_size = max(1, round(WINDOW_SHARE * self._num_blocks))
        self._protected_size = round(PROTECTED_SHARE * (self._num_blocks - self._window_size))

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            self._key[block] = key
            self._cells[block] = self._sketch.cells(key)
            self._sketch.count(self._cells[block])
            self._put(block, _WINDOW)
            self._window.offer(block, self._tick())
        self._balance()

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        for block in blocks.tolist():
            self._sketch.count(self._cells[block])
            part = self._window if self._queue_of[block] == _WINDOW else self._protected
            part.offer(block, self._tick())
        self._balance()

    def release(self, blocks: np.ndarray, use: Use) -> None:
        for block in blocks.tolist():
            now = self._tick()
            self._rank[block] = (_PROBATIONARY, now)
            if self._queue_of[block] == _WINDOW:
                self._window.offer(block, now)
            elif block in self._protected:
                self._protected.offer(block, now)
                self._rank[block] = (_PROTECTED, now)

    def victim(self) -> int | None:
        newcomer, resident = (queue.lowest() for queue in self._queues)
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        is_better = self._sketch.estimate(self._cells[newcomer]) > self._sketch.estimate(self._cells[resident])
        return resident if is_better else newcomer

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        gone = blocks.tolist()
        self._window.withdraw(gone)
        self._protected.withdraw(gone)

    def resize(self, num_blocks: int) -> None:
        super().resize(num_blocks)
        self._set_sizes()
        self._balance()
        self._sketch.resize(num_blocks)
        self._cells[:] = map(self._sketch.cells, self._key)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._window.move(source, target)
        self._protected.move(source, target)

    def _balance(self) -> None:
        """What a part holds beyond its share goes on: from the window, or from the protected, to the probationary."""
        for part, size in ((self._window, self._window_size), (self._protected, self._protected_size)):
            while len(part) > size:
                block = part.lowest()
                assert block is not None
                part.withdraw((block,))
                self._change_queue(block, _MAIN, (_PROBATIONARY, self._tick()))

    def _tick(self) -> int:
        self._now += 1
        return self._now
