"""FIFO, LRU and priorities: one list, the first to go in front."""

from collections.abc import Collection

from kvpager.eviction.policy import Use
from tests.eviction.naive.model import Model, first_of


class NaiveFIFO(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.queue: list[int] = []

    def enter(self, page: int) -> None:
        self.queue.append(page)

    def leave(self, page: int) -> None:
        self.queue.remove(page)

    def victim(self, offered: Collection[int]) -> int | None:
        return first_of(self.queue, offered)


class NaiveLRU(NaiveFIFO):
    def release(self, pages: list[int], use: Use) -> None:
        for page in pages:
            self.queue.remove(page)
            self.queue.append(page)


class NaivePriority(NaiveLRU):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.priority: dict[int, int] = {}

    def release(self, pages: list[int], use: Use) -> None:
        super().release(pages, use)
        self.priority.update(dict.fromkeys(pages, use.priority))

    def victim(self, offered: Collection[int]) -> int | None:
        lowest = min((self.priority[page] for page in offered), default=0)
        return first_of(self.queue, [page for page in offered if self.priority[page] == lowest])
