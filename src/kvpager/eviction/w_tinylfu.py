"""W-TinyLFU: new pages pass through a small window, and stay only if they are used more often than what they replace.

Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy" (2017): a window of 1 % of the cache
under LRU, a main part under SLRU, and a sketch of how often keys were seen, present or not. What falls out of the
window meets the main part's victim; the one seen less often goes, the newcomer where they are equal.

Nothing moves when a victim is asked for: pages leave the window when others are let go of. Leaf rule: the least recent
leaf of each part stands for its least recent page; where only one has a leaf, that goes. A request may be larger than
the window. Its pages pass through it in the order of its prompt, so it is the first ones that go on to the main part
unasked, where they can't go before those below them; its last pages, the leaves to be, are in the window and have to
prove themselves. Parts hold the pages that are let go of: a live one takes its place when its request ends.
"""

import numpy as np

from kvpager.eviction.frequency_sketch import CELLS, FrequencySketch
from kvpager.eviction.policy import Use
from kvpager.eviction.queued_policy import QueuedPolicy
from kvpager.eviction.ranked_policy import TIME_BITS
from kvpager.eviction.recency import Recency

WINDOW_SHARE = 0.01
PROTECTED_SHARE = 0.8  # of the main part
_WINDOW, _MAIN = 0, 1
_PROTECTED = 1 << TIME_BITS  # in a rank: after all of the probationary segment


class WTinyLFU(QueuedPolicy):
    name = "w_tinylfu"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._page = self._column(0)  # a number for what the block holds
        self._num_pages = 0
        self._is_protected = self._column(False)  # or will be when it is let go of
        self._window, self._protected = Recency(), Recency()  # all pages there that are not live
        self._keys = np.zeros(num_blocks, np.uint64)
        self._cells = np.zeros((num_blocks, CELLS), np.int64)  # of the keys
        self._sketch = FrequencySketch(num_blocks)
        self._set_sizes()

    def _set_sizes(self) -> None:
        self._window_size = max(1, round(WINDOW_SHARE * self._num_blocks))
        self._protected_size = round(PROTECTED_SHARE * (self._num_blocks - self._window_size))

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        self._keys[blocks] = keys
        self._cells[blocks] = cells = self._sketch.cells(keys)
        self._sketch.count(cells)
        page_in, queue_of, is_protected = self._page, self._queue_of, self._is_protected
        for page, block in enumerate(blocks.tolist(), self._num_pages):
            page_in[block] = page
            queue_of[block] = _WINDOW
            is_protected[block] = False
        self._num_pages += len(blocks)
        self._sizes[_WINDOW] += len(blocks)

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        self._sketch.count(self._cells.take(blocks, axis=0))
        page_in, queue_of, is_protected = self._page, self._queue_of, self._is_protected
        take_out_of_window, take_out_of_protected = self._window.pop, self._protected.pop
        for block in blocks.tolist():
            if queue_of[block] == _WINDOW:
                take_out_of_window(page_in[block], None)
            elif is_protected[block]:
                take_out_of_protected(page_in[block], None)
            else:
                is_protected[block] = True

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, page_in, queue_of, is_protected = self._rank, self._page, self._queue_of, self._is_protected
        window, protected, let_go, now = self._window, self._protected, blocks.tolist(), self._now
        for block in let_go:
            if is_protected[block]:
                protected[page_in[block]] = block
                rank[block] = _PROTECTED + now
            else:
                rank[block] = now
            now += 1
        self._now = now
        for block in reversed(let_go):
            if queue_of[block] == _WINDOW:
                window[page_in[block]] = block
        self._balance()

    def victim(self) -> int | None:
        window, main = self._queues
        newcomer, resident = window.lowest(), main.lowest()
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        estimate, cells = self._sketch.estimate, self._cells
        is_wanted_more = estimate(cells[newcomer].tolist()) > estimate(cells[resident].tolist())
        return resident if is_wanted_more else newcomer

    def leave(self, blocks: np.ndarray) -> None:
        super().leave(blocks)
        for block in blocks.tolist():
            if self._queue_of[block] == _WINDOW:
                self._window.pop(self._page[block], None)
            elif self._is_protected[block]:
                self._protected.pop(self._page[block], None)

    def resize(self, num_blocks: int) -> None:
        before = min(num_blocks, self._num_blocks)
        super().resize(num_blocks)
        self._set_sizes()
        self._balance()
        keys = np.zeros(num_blocks, np.uint64)
        keys[:before] = self._keys[:before]
        self._keys = keys
        self._sketch.resize(num_blocks)
        self._cells = self._sketch.cells(keys)

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._keys[target], self._cells[target] = self._keys[source], self._cells[source]
        for part in (self._window, self._protected):
            part.rename(self._page[target], target)

    def _balance(self) -> None:
        """What a part holds beyond its share goes on: from the window, or from the protected, to the probationary."""
        for part, size in ((self._window, self._window_size), (self._protected, self._protected_size)):
            while len(part) > size:
                block = part.pop_oldest()
                self._is_protected[block] = False
                self._change_queue(block, _MAIN, self._now)
                self._now += 1
