"""W-TinyLFU: three lists, the least recent in front, and one dictionary of counters."""

from collections import Counter
from collections.abc import Collection

import numpy as np

from kvpager.eviction.frequency_sketch import FrequencySketch
from kvpager.eviction.policy import Use
from tests.eviction.naive.model import Model, first_of


class NaiveWTinyLFU(Model):
    """Where a key is counted is no matter of the policy."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.sketch = FrequencySketch(size)
        self.counters: Counter[int] = Counter()
        self.counted = 0
        self.window_size = max(1, round(size / 100))
        self.protected_size = round(0.8 * (size - self.window_size))
        self.window: list[int] = []
        self.probationary: list[int] = []
        self.protected: list[int] = []
        self.goes_to: dict[int, list[int]] = {}  # live pages, when they are let go of

    def enter_all(self, pages: list[int]) -> None:
        self.count(pages)
        self.goes_to.update(dict.fromkeys(pages, self.window))

    def hit_all(self, pages: list[int]) -> None:
        self.count(pages)
        for page in pages:
            if page in self.goes_to:
                in_window = self.goes_to[page] is self.window
            else:
                in_window = page in self.window
                self.leave(page)
            self.goes_to[page] = self.window if in_window else self.protected

    def release(self, pages: list[int], use: Use) -> None:
        of_window = [page for page in pages if self.goes_to[page] is self.window]
        self.protected += [page for page in pages if self.goes_to[page] is self.protected]
        self.window += reversed(of_window)
        for page in pages:
            del self.goes_to[page]
        while len(self.window) > self.window_size:
            self.probationary.append(self.window.pop(0))
        while len(self.protected) > self.protected_size:
            self.probationary.append(self.protected.pop(0))

    def leave(self, page: int) -> None:
        for part in (self.window, self.probationary, self.protected):
            if page in part:
                part.remove(page)

    def victim(self, offered: Collection[int]) -> int | None:
        newcomer, resident = first_of(self.window, offered), first_of(self.probationary + self.protected, offered)
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        return resident if self.estimate(newcomer) > self.estimate(resident) else newcomer

    def cells(self, page: int) -> list[int]:
        return self.sketch.cells(np.array([page], np.uint64))[0].tolist()

    def count(self, pages: list[int]) -> None:
        for cell in {cell for page in pages for cell in self.cells(page)}:
            self.counters[cell] = min(15, self.counters[cell] + 1)
        self.counted += len(pages)
        if self.counted >= 10 * self.size:
            self.counters = Counter({cell: count // 2 for cell, count in self.counters.items()})
            self.counted = 5 * self.size

    def estimate(self, page: int) -> int:
        return min(self.counters[cell] for cell in self.cells(page))
