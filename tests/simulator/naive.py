"""LRU over levels as one would tell it, looking at every page each time: what the replay is compared with."""

from itertools import takewhile

from kvpager.simulator.trace import Trace


class NaiveLevels:
    def __init__(self, trace: Trace, capacities: list[int], *, inclusive: bool = False) -> None:
        self.trace = trace
        self.capacities = capacities
        self.inclusive = inclusive
        self.stamps: list[dict[int, int]] = [{} for _ in capacities]  # of each page, by level
        self.live: list[list[int]] = []
        self.found: list[list[int]] = [[] for _ in capacities]
        self.stored = [0] * len(capacities)
        self.evicted = [0] * len(capacities)
        self.cut = 0
        self.coming_up: dict[int, int] = {}
        self._time = 0

    def arrive(self, request: int) -> list[int]:
        chain = self.trace.pages[self.trace.first[request] : self.trace.first[request + 1]].tolist()
        hit = list(takewhile(lambda page: page in self.stamps[0], chain))
        busy = {page for each in self.live for page in each} | set(hit)
        room = self.capacities[0] - len(busy)
        if len(chain) - len(hit) > room:
            self.cut += 1
            chain = chain[: len(hit) + room]
        rest = list(takewhile(lambda page: self._place(page) > 0, chain[len(hit) :]))
        places = {page: self._place(page) for page in rest}
        for at in range(1, len(self.capacities)):
            self.found[at].append(sum(place == at for place in places.values()))
        self.found[0].append(len(hit))
        if self.inclusive:
            self.coming_up = places  # and read meanwhile
        else:
            for page, place in places.items():
                del self.stamps[place][page]
        self.live.append(chain)
        fresh = chain[len(hit) :]
        while len(self.stamps[0]) + len(fresh) > self.capacities[0]:
            self._evict(0, held=busy | set(chain))
        for page in fresh:
            self.stamps[0][page] = -1
        if self.inclusive:
            for page in reversed(rest):
                self.stamps[places[page]][page] = self._tick()
        return chain

    def depart(self, chain: list[int]) -> None:
        self.live.remove(chain)
        busy = {page for each in self.live for page in each}
        for page in reversed(chain):
            if page not in busy:
                self.stamps[0][page] = self._tick()

    def _place(self, page: int) -> int:
        return next((at for at in range(1, len(self.stamps)) if page in self.stamps[at]), 0)

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _evict(self, at: int, held: set[int]) -> bool:
        level = self.stamps[at]
        parents = {int(self.trace.parent[page]) for page in level}
        leaves = [page for page in level if page not in parents and page not in held]
        if not leaves:
            return False
        victim = min(leaves, key=lambda page: level[page])
        del level[victim]
        self.evicted[at] += 1
        below = range(at + 1, len(self.stamps))
        if not any(victim in self.stamps[to] for to in below):
            any(self._store(to, victim) for to in below)  # the nearest that takes it
        return True

    def _store(self, at: int, page: int) -> bool:
        held = {int(self.trace.parent[page])} | {each for each, place in self.coming_up.items() if place == at}
        if len(self.stamps[at]) == self.capacities[at] and not self._evict(at, held):
            return False
        self.stamps[at][page] = self._tick()
        self.stored[at] += 1
        return True
