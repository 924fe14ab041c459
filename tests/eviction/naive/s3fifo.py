"""S3-FIFO by the algorithm of its paper: lists S, M and G, the oldest in front."""

from collections.abc import Collection

from tests.eviction.naive.model import Model, first_of


class NaiveS3FIFO(Model):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.small_size = max(1, round(size / 10))
        self.s: list[int] = []
        self.m: list[int] = []
        self.g: list[int] = []
        self.freq: dict[int, int] = {}

    def enter(self, page: int) -> None:
        if page in self.g:
            self.g.remove(page)
            self.m.append(page)
        else:
            self.s.append(page)
        self.freq[page] = 0

    def hit(self, page: int) -> None:
        self.freq[page] = min(3, self.freq[page] + 1)

    def leave(self, page: int) -> None:
        if page in self.m:
            self.m.remove(page)
        else:
            self.s.remove(page)
            self.g.append(page)
            self.g = self.g[-(self.size - self.small_size) :]

    def victim(self, offered: Collection[int]) -> int | None:
        found = self.evict_s(offered) if len(self.s) >= self.small_size else self.evict_m(offered)
        if found is None:  # no leaf where it was looked for
            found = self.evict_s(offered)
        return self.evict_m(offered) if found is None else found

    def evict_s(self, offered: Collection[int]) -> int | None:
        while (page := first_of(self.s, offered)) is not None:
            if self.freq[page] <= 1:
                return page
            self.s.remove(page)
            self.m.append(page)
            self.freq[page] = 0
            if len(self.m) > self.size - self.small_size:
                return self.evict_m(offered)
        return None

    def evict_m(self, offered: Collection[int]) -> int | None:
        while (page := first_of(self.m, offered)) is not None:
            if self.freq[page] == 0:
                return page
            self.m.remove(page)
            self.m.append(page)
            self.freq[page] -= 1
        return None
