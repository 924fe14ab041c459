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

from kvpager.errors import InvariantError
from kvpager.eviction.frequency_sketch import CELLS, FrequencySketch
from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.ranked_policy import TIME_BITS, RankedPolicy
from kvpager.eviction.recency import Recency

WINDOW_SHARE = 0.01
PROTECTED_SHARE = 0.8  # of the main part
_WINDOW, _PROBATIONARY, _PROTECTED = 0, 1, 2  # all but the window is the main part
_LATE = 1 << TIME_BITS  # in a rank of the protected: after all of the probationary segment


class WTinyLFU(RankedPolicy):
    """The evictable pages of the window are in ``_newcomers``, those of the main part in ``_leaves``."""

    name = "w_tinylfu"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._part = self._column(_WINDOW)  # where the page is, or will be when it is let go of
        self._window, self._protected = Recency(num_blocks), Recency(num_blocks)  # all pages there that are not live
        self._newcomers = RankedLeaves()
        self._keys = np.zeros(num_blocks, np.uint64)
        self._cells = np.zeros((num_blocks, CELLS), np.int64)  # of the keys
        self._sketch = FrequencySketch(num_blocks)
        self._estimates: dict[int, int] = {}  # of blocks, since the last count
        self._set_sizes()

    def _set_sizes(self) -> None:
        self._window_size = max(1, round(WINDOW_SHARE * self._num_blocks))
        self._protected_size = round(PROTECTED_SHARE * (self._num_blocks - self._window_size))

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        self._keys[blocks] = keys
        self._cells[blocks] = cells = self._sketch.cells(keys)
        self._count(cells)
        part = self._part
        for block in blocks.tolist():
            part[block] = _WINDOW

    def hit(self, blocks: np.ndarray) -> None:
        self._count(self._cells.take(blocks, axis=0))
        found, part = blocks.tolist(), self._part
        of_main = [block for block in found if part[block]]
        if len(of_main) < len(found):
            of_window = [block for block in found if not part[block]]
            self._newcomers.withdraw_all(of_window)
            self._window.take_out(of_window)
        self._leaves.withdraw_all(of_main)
        self._protected.take_out(of_main)
        for block in of_main:
            part[block] = _PROTECTED

    def release(self, blocks: np.ndarray, use: Use) -> None:
        rank, part, let_go = self._rank, self._part, blocks.tolist()
        for now, block in enumerate(let_go, self._now):
            rank[block] = now + _LATE if part[block] == _PROTECTED else now
        self._now += len(let_go)
        self._protected.use([block for block in let_go if part[block] == _PROTECTED])
        self._window.use([block for block in reversed(let_go) if part[block] == _WINDOW])
        self._balance()

    def offer(self, blocks: np.ndarray) -> None:
        part, rank = self._part, self._rank
        for block in blocks.tolist():
            (self._leaves if part[block] else self._newcomers).offer(block, rank[block])

    def withdraw(self, blocks: np.ndarray) -> None:
        held = blocks.tolist()
        self._newcomers.withdraw_all(held)
        self._leaves.withdraw_all(held)

    def victim(self) -> int | None:
        newcomer, resident = self._newcomers.lowest(), self._leaves.lowest()
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        estimates = self._estimates
        for block in (newcomer, resident):
            if block not in estimates:
                estimates[block] = self._sketch.estimate(self._cells[block].tolist())
        return resident if estimates[newcomer] > estimates[resident] else newcomer

    def leave(self, blocks: np.ndarray) -> None:
        part = self._part
        for block in blocks.tolist():
            if part[block] == _WINDOW:
                self._newcomers.withdraw(block)
                self._window.take_out((block,))
            else:
                self._leaves.withdraw(block)
                if part[block] == _PROTECTED:
                    self._protected.take_out((block,))

    def resize(self, num_blocks: int) -> None:
        before = min(num_blocks, self._num_blocks)
        super().resize(num_blocks)
        for recency in (self._window, self._protected):
            recency.resize(num_blocks)
        self._set_sizes()
        self._balance()
        keys = np.zeros(num_blocks, np.uint64)
        keys[:before] = self._keys[:before]
        self._keys = keys
        self._sketch.resize(num_blocks)
        self._cells = self._sketch.cells(keys)
        self._estimates.clear()

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._newcomers.move(source, target)
        self._keys[target], self._cells[target] = self._keys[source], self._cells[source]
        for recency in (self._window, self._protected):
            recency.move(source, target)
        self._estimates.clear()

    def check(self, offered: np.ndarray) -> None:
        is_newcomer = np.array([self._part[block] == _WINDOW for block in offered.tolist()], bool)
        self._newcomers.check(offered[is_newcomer])
        self._leaves.check(offered[~is_newcomer])
        for block, part in enumerate(self._part):
            if (block in self._window and part != _WINDOW) or (block in self._protected and part != _PROTECTED):
                raise InvariantError(f"block {block} is in a part of the cache that it does not know of")

    def _balance(self) -> None:
        """What a part holds beyond its share goes on: from the window, or from the protected, to the probationary."""
        rank, part, newcomers, leaves = self._rank, self._part, self._newcomers, self._leaves
        of_window = self._window.pop_oldest(max(0, len(self._window) - self._window_size))
        of_protected = self._protected.pop_oldest(max(0, len(self._protected) - self._protected_size))
        moved = of_window + of_protected
        for now, block in enumerate(moved, self._now):
            part[block] = _PROBATIONARY
            rank[block] = now
        self._now += len(moved)
        offered = newcomers.among(of_window)
        newcomers.withdraw_all(offered)
        leaves.offer_all(offered, rank)
        leaves.offer_all(leaves.among(of_protected), rank)

    def _count(self, cells: np.ndarray) -> None:
        self._sketch.count(cells)
        self._estimates.clear()
