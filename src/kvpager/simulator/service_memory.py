"""How a simulated server gives KV memory to requests: page by page, or as one run of slots each.

    paged              pages as tokens are computed; all of a request's known tokens are counted when it starts
    contiguous         a run as long as the longest request allowed, from its start to its end
    contiguous-exact   a run of exactly the request's final length, by first fit: an oracle, since nobody knows it

Small models of the real allocators, in tokens; they know no clock and no costs. ``check`` raises InvariantError unless
what is in use fits.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from kvpager.errors import ConfigError, InvariantError

REGIMES = ("paged", "contiguous", "contiguous-exact")


class Memory(Protocol):
    """``capacity`` tokens of device memory. Lengths are of the running requests, in one array."""

    capacity: int

    def can_hold(self, final: int) -> bool:
        """Whether a request that ends with ``final`` tokens could run alone."""
        ...

    def promised(self, known: np.ndarray) -> int:
        """Tokens that running requests with so many known tokens each will soon have taken."""
        ...

    def admit(self, key: int, known: int, final: int, promised: int) -> bool:
        """Starts a request of ``known`` tokens if there is room beside what is ``promised`` to those that run."""
        ...

    def growth(self, lengths: np.ndarray, steps: int) -> np.ndarray:
        """int64 [steps]: tokens more that are reserved after each of so many steps of one token for every request."""
        ...

    def needs(self, before: np.ndarray, after: np.ndarray) -> int:
        """Tokens more that are reserved once requests have grown so."""
        ...

    def resize(self, before: np.ndarray, after: np.ndarray) -> None:
        """Requests have grown. REQUIRES: what they need is free."""
        ...

    def release(self, key: int, length: int) -> None: ...

    @property
    def reserved(self) -> int:
        """Tokens that nobody else can use now, in device memory or below."""
        ...

    @property
    def free(self) -> int:
        """Tokens that requests may grow into."""
        ...

    def check(self) -> None: ...


def make_memory(regime: str, capacity: int, *, page_size: int, longest: int, below: int = 0) -> Memory:
    """``longest``: tokens that a request may have. ``below``: tokens in tiers below, which only pages can use."""
    if regime == "paged":
        return PagedMemory(capacity, page_size, below)
    if regime == "contiguous":
        return RunMemory(capacity, longest)
    if regime == "contiguous-exact":
        return RunMemory(capacity, None)
    raise ConfigError(f"unknown allocation {regime!r}; there are {', '.join(REGIMES)}")


class PagedMemory:
    """``below``: tokens in lower tiers; with them, whatever the device does not hold is sent for every step."""

    def __init__(self, capacity: int, page_size: int, below: int = 0) -> None:
        self.page_size = page_size
        self._pages = capacity // page_size + below // page_size
        self.capacity = capacity // page_size * page_size
        self._spare = max(1, self._pages // 100)  # kept free when a request starts beside others
        self._used = 0
        if capacity < page_size:
            raise ConfigError(f"{capacity} tokens of memory hold no page of {page_size}")

    def can_hold(self, final: int) -> bool:
        return self._num(final) <= self._pages

    def promised(self, known: np.ndarray) -> int:
        return self.page_size * self._sum(known + self.page_size)  # each has a page to grow into

    def admit(self, key: int, known: int, final: int, promised: int) -> bool:
        return not promised or promised // self.page_size + self._num(known) + self._spare <= self._pages

    def growth(self, lengths: np.ndarray, steps: int) -> np.ndarray:
        page = self.page_size
        crossings = np.bincount(-lengths % page, minlength=page)  # requests that begin a page in step 0, 1, ..
        found: np.ndarray = page * np.cumsum(np.resize(crossings, steps))
        return found

    def needs(self, before: np.ndarray, after: np.ndarray) -> int:
        return self.page_size * (self._sum(after) - self._sum(before))

    def resize(self, before: np.ndarray, after: np.ndarray) -> None:
        self._used += self._sum(after) - self._sum(before)

    def release(self, key: int, length: int) -> None:
        self._used -= self._num(length)

    @property
    def reserved(self) -> int:
        return self._used * self.page_size

    @property
    def free(self) -> int:
        return (self._pages - self._used) * self.page_size

    def check(self) -> None:
        if not 0 <= self._used <= self._pages:
            raise InvariantError(f"{self._used} pages are in use of {self._pages}")

    def _num(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _sum(self, tokens: np.ndarray) -> int:
        return int(np.sum((tokens + self.page_size - 1) // self.page_size))


@dataclass(frozen=True, slots=True, order=True)
class _Run:
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class RunMemory:
    """First fit over free runs of slots, which join with their neighbours as they come back. ``size`` of every run;
    None: each request's final length."""

    def __init__(self, capacity: int, size: int | None) -> None:
        self.capacity = capacity
        self._size = size
        self._free = [_Run(0, capacity)]
        self._taken: dict[int, _Run] = {}
        self._reserved = 0

    def can_hold(self, final: int) -> bool:
        return (final if self._size is None else max(final, self._size)) <= self.capacity

    def promised(self, known: np.ndarray) -> int:
        return 0

    def admit(self, key: int, known: int, final: int, promised: int) -> bool:
        size = final if self._size is None else self._size
        for at, run in enumerate(self._free):
            if run.size >= size:
                self._taken[key] = _Run(run.start, size)
                self._free[at : at + 1] = [_Run(run.start + size, run.size - size)] if run.size > size else []
                self._reserved += size
                return True
        return False

    def growth(self, lengths: np.ndarray, steps: int) -> np.ndarray:
        return np.zeros(steps, np.int64)

    def needs(self, before: np.ndarray, after: np.ndarray) -> int:
        return 0  # a run is as long as it will ever be

    def resize(self, before: np.ndarray, after: np.ndarray) -> None:
        pass

    def release(self, key: int, length: int) -> None:
        run = self._taken.pop(key)
        if length > run.size:
            raise InvariantError(f"a request of {length} tokens ended in a run of {run.size}")
        at = bisect(self._free, run)
        begin, end = run.start, run.start + run.size
        first, last = at, at
        if at and self._free[at - 1].end == begin:
            first, begin = at - 1, self._free[at - 1].start
        if at < len(self._free) and self._free[at].start == end:
            last, end = at + 1, self._free[at].end
        self._free[first:last] = [_Run(begin, end - begin)]
        self._reserved -= run.size

    @property
    def reserved(self) -> int:
        return self._reserved

    @property
    def free(self) -> int:
        return 0

    @property
    def largest_free(self) -> int:
        """The longest run that could start now: less than all that is free, where memory is fragmented."""
        return max((run.size for run in self._free), default=0)

    def check(self) -> None:
        runs = sorted([*self._free, *self._taken.values()])
        ends = [run.end for run in runs]
        if [run.start for run in runs] != [0, *ends[:-1]] or ends[-1] != self.capacity:
            raise InvariantError("runs overlap, or leave slots out")
        if any(one.end == other.start for one, other in pairwise(self._free)):
            raise InvariantError("two free runs touch")
        if self._reserved != sum(run.size for run in self._taken.values()):
            raise InvariantError("what is reserved was counted wrong")
