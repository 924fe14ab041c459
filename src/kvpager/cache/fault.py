"""Counts and times page faults by kind. Knows nothing of how they are resolved."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvpager.types import Clock, FaultKind


@dataclass(frozen=True, slots=True)
class FaultCount:
    """``pages`` faulted in, and the ``seconds`` their handling took, since the cache was opened."""

    pages: int
    seconds: float


@dataclass(slots=True)
class SequenceFaults:
    """What reading its non-resident pages took of one sequence: pages read, bytes, and seconds that steps waited.

    A page counts once for each step that read it.
    """

    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0


class FaultLog:
    """One counter per FaultKind; counters never go down."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock
        self._pages = dict.fromkeys(FaultKind, 0)
        self._seconds = dict.fromkeys(FaultKind, 0.0)

    @contextmanager
    def handling(self, kind: FaultKind, pages: int) -> Iterator[None]:
        """Wraps the handling of ``pages`` faults; a handling that raises is not counted."""
        start = self.now()
        yield
        self._pages[kind] += pages
        self._seconds[kind] += self.now() - start

    def add(self, kind: FaultKind, pages: int, seconds: float) -> None:
        """Faults that were handled beside the bookkeeping, and how long they took."""
        self._pages[kind] += pages
        self._seconds[kind] += seconds

    def counts(self) -> dict[FaultKind, FaultCount]:
        return {kind: FaultCount(self._pages[kind], self._seconds[kind]) for kind in FaultKind}
