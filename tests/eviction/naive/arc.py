"""ARC by the cases of its paper; a victim is asked for before the page that needs the room is known."""

from collections.abc import Collection

from kvpager.eviction.policy import Use
from tests.eviction.naive.model import Model, first_of


class NaiveARC(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.p = 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def enter(self, page: int) -> None:
        if page in self.b1:  # case II
            self.p = min(self.size, self.p + max(1, len(self.b2) / len(self.b1)))
            self.b1.remove(page)
            self.t2.append(page)
        elif page in self.b2:  # case III
            self.p = max(0, self.p - max(1, len(self.b1) / len(self.b2)))
            self.b2.remove(page)
            self.t2.append(page)
        else:  # case IV
            if len(self.t1) + len(self.b1) == self.size and self.b1:
                self.b1.pop(0)
            elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) == 2 * self.size and self.b2:
                self.b2.pop(0)
            self.t1.append(page)

    def hit(self, page: int) -> None:  # case I
        (self.t1 if page in self.t1 else self.t2).remove(page)
        self.t2.append(page)

    def release(self, pages: list[int], use: Use) -> None:
        for page in pages:
            part = self.t1 if page in self.t1 else self.t2
            part.remove(page)
            part.append(page)

    def leave(self, page: int) -> None:
        part, ghosts = (self.t1, self.b1) if page in self.t1 else (self.t2, self.b2)
        part.remove(page)
        ghosts.append(page)

    def victim(self, offered: Collection[int]) -> int | None:
        return first_of(self.t1 + self.t2 if len(self.t1) > self.p else self.t2 + self.t1, offered)
