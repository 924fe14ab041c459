"""LRU-2: all uses of every page, here or gone, and the last but one of them."""

from collections.abc import Collection

from kvpager.eviction.lru_k import HISTORY
from kvpager.eviction.policy import Use
from tests.eviction.naive.model import Model


class NaiveLRUK(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.now = 0
        self.uses: dict[int, list[int]] = {}
        self.gone: list[int] = []

    def enter(self, page: int) -> None:
        if page in self.gone:
            self.gone.remove(page)
        self.hit(page)

    def hit(self, page: int) -> None:
        self.now += 1
        self.uses.setdefault(page, []).append(self.now)

    def release(self, pages: list[int], use: Use) -> None:
        for page in pages:
            self.now += 1
            self.uses[page][-1] = self.now

    def leave(self, page: int) -> None:
        self.gone.append(page)
        if len(self.gone) > HISTORY * self.size:
            del self.uses[self.gone.pop(0)]

    def victim(self, offered: Collection[int]) -> int | None:
        return min(offered, key=lambda page: ([0, *self.uses[page]][-2], self.uses[page][-1]), default=None)
