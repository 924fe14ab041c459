"""SLRU: two lists, the least recent in front."""

from collections.abc import Collection

from kvpager.eviction.policy import Use
from kvpager.eviction.slru import PROTECTED_SHARE
from tests.eviction.naive.model import Model, first_of


class NaiveSLRU(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.protected_size = PROTECTED_SHARE * size
        self.probationary: list[int] = []
        self.protected: list[int] = []

    def enter(self, page: int) -> None:
        self.probationary.append(page)

    def hit(self, page: int) -> None:
        (self.protected if page in self.protected else self.probationary).remove(page)
        self.protected.append(page)
        while len(self.protected) > self.protected_size:
            self.probationary.append(self.protected.pop(0))

    def release(self, pages: list[int], use: Use) -> None:
        for page in pages:
            segment = self.protected if page in self.protected else self.probationary
            segment.remove(page)
            segment.append(page)

    def leave(self, page: int) -> None:
        (self.protected if page in self.protected else self.probationary).remove(page)

    def victim(self, offered: Collection[int]) -> int | None:
        return first_of(self.probationary + self.protected, offered)
