"""SIEVE: a list, the oldest in front, and a hand that points into it."""

from collections.abc import Collection

from tests.eviction.naive.model import Model


class NaiveSIEVE(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.queue: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0

    def enter(self, page: int) -> None:
        self.queue.append(page)
        self.visited.discard(page)

    def hit(self, page: int) -> None:
        self.visited.add(page)

    def leave(self, page: int) -> None:
        assert self.queue.index(page) == self.hand
        self.queue.remove(page)

    def victim(self, offered: Collection[int]) -> int | None:
        while offered:
            if self.hand >= len(self.queue):
                self.hand = 0
            page = self.queue[self.hand]
            if page in offered and page not in self.visited:
                return page
            if page in offered:
                self.visited.discard(page)
            self.hand += 1
        return None
