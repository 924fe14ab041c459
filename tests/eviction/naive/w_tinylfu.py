"""W-TinyLFU: three lists, the least recent in front, and one dictionary of counters."""

from collections import Counter
from collections.abc import Collection

from kvpager.eviction.frequency_sketch import FrequencySketch
from kvpager.eviction.policy import Use
from tests.eviction.naive.model import Model, first_of


class NaiveWTinyLFU(Model):
    """``key_of``: what the policy is told of a page; where a key is counted is no matter of the policy."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.cells = FrequencySketch(size).cells
        self.counters: Counter[int] = Counter()
        self.counted = 0
        self.window_size = max(1, round(size / 100))
        self.protected_size = round(0.8 * (size - self.window_size))
        self.window: list[int] = []
        self.probationary: list[int] = []
        self.protected: list[int] = []

    def enter(self, page: int) -> None:
        self.count(page)
        self.window.append(page)
        if len(self.window) > self.window_size:
            self.probationary.append(self.window.pop(0))

    def hit(self, page: int) -> None:
        self.count(page)
        if page in self.window:
            self.window.remove(page)
            self.window.append(page)
            return
        (self.protected if page in self.protected else self.probationary).remove(page)
        self.protected.append(page)
        if len(self.protected) > self.protected_size:
            self.probationary.append(self.protected.pop(0))

    def release(self, pages: list[int], use: Use) -> None:
        for page in pages:
            for part in (self.window, self.probationary, self.protected):
                if page in part:
                    part.remove(page)
                    part.append(page)

    def leave(self, page: int) -> None:
        for part in (self.window, self.probationary, self.protected):
            if page in part:
                part.remove(page)

    def victim(self, offered: Collection[int]) -> int | None:
        newcomer, resident = first_of(self.window, offered), first_of(self.probationary + self.protected, offered)
        if newcomer is None or resident is None:
            return resident if newcomer is None else newcomer
        return resident if self.estimate(newcomer) > self.estimate(resident) else newcomer

    def count(self, page: int) -> None:
        for cell in self.cells(page):
            self.counters[cell] = min(15, self.counters[cell] + 1)
        self.counted += 1
        if self.counted == 10 * self.size:
            self.counters = Counter({cell: count // 2 for cell, count in self.counters.items()})
            self.counted = 5 * self.size

    def estimate(self, page: int) -> int:
        return min(self.counters[cell] for cell in self.cells(page))
