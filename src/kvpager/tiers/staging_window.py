"""The staging window over lower tiers: memory for streams, threads that read, and what both have done.

Each stream has memory of its own, so that none ever waits for what another holds (window_memory.py); what a thread
fetched keeps half of the window until it fetches again. Pages whose parts are not known yet are read whole, into memory
of the workers (4 MiB each, or one page).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock, local
from time import monotonic

from kvpager.errors import ConfigError
from kvpager.tiers.lane import Lane
from kvpager.tiers.part_stream import STEP, Stream
from kvpager.tiers.staging import NoPace, Pace, PartRequest, Staged
from kvpager.tiers.tier import LowerTier
from kvpager.tiers.window_memory import WindowMemory
from kvpager.types import TierKind


@dataclass(slots=True)
class WindowCounts:
    """What was read from one tier. ``bytes``: with pages that were read whole. ``seconds``: as long as workers were at
    it, summed up. ``stalled``: seconds that steps waited."""

    parts: int = 0
    bytes: int = 0
    seconds: float = 0.0
    stalled: float = 0.0
    failed: int = 0


class StagingWindow:
    """``tiers``: whose held pages are read. ``deadline``: seconds that a request is waited for at most; None: for ever.

    ``debug``: memory that may be overwritten is, at once. ``pace`` is set by whoever shares processors between steps.
    """

    def __init__(
        self, num_bytes: int, tiers: Sequence[LowerTier], *, deadline: float | None = None, debug: bool = False
    ) -> None:
        if num_bytes < 2 * STEP:
            raise ConfigError(f"a staging window has at least {2 * STEP} bytes, not {num_bytes}")
        self.num_bytes = num_bytes
        self.memory = WindowMemory(num_bytes // 2 // STEP * STEP)
        self.pace: Pace = NoPace()
        self.deadline = deadline
        self.debug = debug
        self.lock = Lock()  # of all that workers and streams share
        self.counts = {tier.kind: WindowCounts() for tier in tiers}
        self._tiers = {tier.kind: tier for tier in tiers}
        self._ahead = self._make_lanes("staging")
        self._now = self._make_lanes("fetch")  # of its own: what is read ahead is not waited for
        self._fetched = local()

    def stream(self, requests: Iterator[PartRequest]) -> Stream:
        return self._open(requests, self._ahead, halves=2)

    def fetch(self, request: PartRequest) -> Staged:
        before: Stream | None = getattr(self._fetched, "stream", None)
        if before is not None:
            before.close()
        stream = self._fetched.stream = self._open(iter((request,)), self._now, halves=1)
        return stream.next()

    def statistics(self) -> dict[TierKind, WindowCounts]:
        with self.lock:
            return {kind: replace(counts) for kind, counts in self.counts.items()}

    def close(self, timeout: float = 1.0) -> None:
        """Lets the threads end; those still reading after ``timeout`` seconds are left alone. REQUIRES: every stream is
        closed."""
        stop_at = monotonic() + timeout
        lanes = [*self._ahead.values(), *self._now.values()]
        for lane in lanes:
            lane.end()
        for lane in lanes:
            lane.join(stop_at)

    # -- for streams --------------------------------------------------------------------------------------------

    def tier(self, kind: TierKind) -> LowerTier:
        return self._tiers[kind]

    def _open(self, requests: Iterator[PartRequest], lanes: dict[TierKind, Lane], halves: int) -> Stream:
        with self.lock:
            memory = self.memory.take(halves)
        stream = Stream(self, requests, memory, lanes)
        try:
            stream.read_ahead()
        except BaseException:
            stream.close()
            raise
        return stream

    def _make_lanes(self, name: str) -> dict[TierKind, Lane]:
        return {kind: Lane(f"{tier.name} {name}", tier.load_threads) for kind, tier in self._tiers.items()}
