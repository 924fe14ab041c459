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
from kvpager.eviction.ranked_policy import TIME_BITS

WINDOW_SHARE = 0.01
PROTECTED_SHARE = 0.8  # of the main part
_WINDOW, _MAIN = 0, 1
_PROTECTED = 1 << TIME_BITS  # in a rank: after all of the probationary segment
_NOWHERE: Cells = (0, 0, 0, 0)


class WTinyLFU(QueuedPolicy):
    name = "w_tinylfu"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._key = self._column(0)
        self._cells = self._column(_NOWHERE)  # of the key
        self._last = self._column(0)
        self._is_protected = self._column(False)
        self._window = RankedLeaves()  # all its pages, by last use
        self._protected = RankedLeaves()  # all its pages, by last use
        self._sketch = FrequencySketch(num_blocks)
        self._set_sizes()

    def _set_sizes(self) -> None:
        self._window_size = max(1, round(WINDOW_SHARE * self._num_blocks))
        self._protected_size = round(PROTECTED_SHARE * (self._num_blocks - self._window_size))

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        entered = blocks.tolist()
        key_of, cells, cells_of_key, is_protected = self._key, self._cells, self._sketch.cells, self._is_protected
        for block, key in zip(entered, keys.tolist(), strict=True):
            key_of[block] = key
            cells[block] = cells_of_key(key)
            is_protected[block] = False
            self._queue_of[block] = _WINDOW
        self._sizes[_WINDOW] += len(entered)
        self._use(entered)

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        queue_of, used = self._queue_of, blocks.tolist()
        for block in used:
            self._is_protected[block] = queue_of[block] == _MAIN
        self._use(used)

    def release(self, blocks: np.ndarray, use: Use) -> None:
        let_go = blocks.tolist()
        self._touch(let_go)
        rank, last, is_protected = self._rank, self._last, self._is_protected
        for block in let_go:
            rank[block] = _PROTECTED + last[block] if is_protected[block] else last[block]

    def victim(self) -> int | None:
        window, main = self._queues
        newcomer, resident = window.lowest(), main.lowest()
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        estimate, cells = self._sketch.estimate, self._cells
        return resident if estimate(cells[newcomer]) > estimate(cells[resident]) else newcomer

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            self._window.withdraw(block)
            self._protected.withdraw(block)

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

    def _use(self, blocks: list[int]) -> None:
        cells = self._cells
        self._sketch.count(cells[block] for block in blocks)
        self._touch(blocks)
        self._balance()

    def _touch(self, blocks: list[int]) -> None:
        """These are the last used of their parts."""
        last, queue_of, is_protected = self._last, self._queue_of, self._is_protected
        for now, block in enumerate(blocks, self._now):
            last[block] = now
        self._now += len(blocks)
        if of_window := [block for block in blocks if queue_of[block] == _WINDOW]:
            self._window.offer_all(of_window, last)
        if of_protected := [block for block in blocks if is_protected[block]]:
            self._protected.offer_all(of_protected, last)

    def _balance(self) -> None:
        """What a part holds beyond its share goes on: from the window, or from the protected, to the probationary."""
        for part, size in ((self._window, self._window_size), (self._protected, self._protected_size)):
            while len(part) > size:
                block = part.lowest()
                assert block is not None
                part.withdraw(block)
                self._is_protected[block] = False
                self._change_queue(block, _MAIN, self._now)
                self._now += 1
