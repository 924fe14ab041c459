"""LFU-DA, GDSF and the window: how often, looked up in full."""

from collections.abc import Collection

from kvpager.eviction.gdsf import DEPTH_OF_DOUBLE
from kvpager.eviction.policy import Use
from kvpager.eviction.window import USES_PER_BLOCK
from tests.contracts.eviction_policy import ManualClock
from tests.eviction.naive.queues import NaiveLRU


class NaiveLFU(NaiveLRU):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.age = 0.0
        self.uses: dict[int, int] = {}
        self.worth: dict[int, float] = {}

    def enter(self, page: int) -> None:
        super().enter(page)
        self.uses[page] = 1

    def hit(self, page: int) -> None:
        self.uses[page] += 1

    def release(self, pages: list[int], use: Use) -> None:
        super().release(pages, use)
        for page in pages:
            self.worth[page] = self.age + self.uses[page] * self.cost(page)

    def cost(self, page: int) -> float:
        return 1.0

    def victim(self, offered: Collection[int]) -> int | None:
        return min(offered, key=lambda page: (self.worth[page], self.queue.index(page)), default=None)

    def leave(self, page: int) -> None:
        super().leave(page)
        self.age = max(self.age, self.worth[page])


class NaiveGDSF(NaiveLFU):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.depth: dict[int, int] = {}

    def enter(self, page: int) -> None:
        super().enter(page)
        self.depth[page] = 0

    def release(self, pages: list[int], use: Use) -> None:
        for depth, page in enumerate(reversed(pages)):
            self.depth[page] = max(self.depth[page], depth)
        super().release(pages, use)

    def cost(self, page: int) -> float:
        return DEPTH_OF_DOUBLE + self.depth[page]


class NaiveWindow(NaiveLRU):
    def __init__(self, size: int, clock: ManualClock, seconds: float) -> None:
        super().__init__(size)
        self.clock, self.seconds = clock, seconds
        self.uses: list[tuple[float, int | None]] = []  # when, which page; None: it is gone

    def enter(self, page: int) -> None:
        super().enter(page)
        self.hit(page)

    def hit(self, page: int) -> None:
        self.uses.append((self.clock.now, page))
        self.uses = self.uses[-USES_PER_BLOCK * self.size :]

    def victim(self, offered: Collection[int]) -> int | None:
        recent = [page for when, page in self.uses if when >= self.clock.now - self.seconds]
        return min(offered, key=lambda page: (recent.count(page), self.queue.index(page)), default=None)

    def leave(self, page: int) -> None:
        super().leave(page)
        self.uses = [(when, None if used == page else used) for when, used in self.uses]
