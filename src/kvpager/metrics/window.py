"""The last minutes of an engine, as snapshots: what rates, growth and comparisons with earlier are computed from.

The counterpart of a range in PromQL, without Prometheus. One snapshot in a few seconds is kept, so memory is bounded.
"""

from collections import deque
from collections.abc import Callable

from kvpager.metrics.baseline import Baseline
from kvpager.metrics.snapshot import Snapshot

_KEPT_SECONDS = 600.0  # also what is recent for the hit rate
_STEP_SECONDS = 5.0  # between two that are kept
_MIN_SPAN = 30.0  # nothing is said of a shorter time


class Window:
    """Snapshots of one engine, oldest first. ``usual``: the hit rate of the time before, see metrics/baseline.py."""

    def __init__(self, usual: Baseline) -> None:
        self.usual = usual
        self.now = 0.0
        self._kept: deque[Snapshot] = deque()
        self._latest: Snapshot | None = None

    def add(self, snapshot: Snapshot, now: float) -> None:
        """``now``: later than ``snapshot.at`` where the engine gave no newer one."""
        self.now = now
        if self._latest is not None and snapshot.at <= self._latest.at:
            return
        self._latest = snapshot
        if not self._kept or snapshot.at - self._kept[-1].at >= _STEP_SECONDS:
            self._kept.append(snapshot)
        while len(self._kept) > 1 and snapshot.at - self._kept[1].at >= _KEPT_SECONDS:
            left, following = self._kept.popleft(), self._kept[0]
            before, after = left.cache.prefix, following.cache.prefix
            tokens, hits = after.prompt_tokens - before.prompt_tokens, after.hit_tokens - before.hit_tokens
            self.usual.add(tokens, hits, following.at - left.at)

    @property
    def latest(self) -> Snapshot:
        """REQUIRES: one was added."""
        assert self._latest is not None
        return self._latest

    @property
    def age(self) -> float:
        """Seconds since the engine gave its latest numbers."""
        return self.now - self.latest.at

    def before(self, seconds: float) -> Snapshot | None:
        """The one from ``seconds`` before the latest, or the oldest there is; None if that is hardly older."""
        if not self._kept:
            return None
        begin = self.latest.at - seconds
        found = next((each for each in self._kept if each.at >= begin), None)
        return found if found is not None and self.latest.at - found.at >= _MIN_SPAN else None

    def increase(self, read: Callable[[Snapshot], float], seconds: float) -> float | None:
        """By how much something grew in the last ``seconds``, or in what is known of them."""
        earlier = self.before(seconds)
        return None if earlier is None else read(self.latest) - read(earlier)

    def rate(self, read: Callable[[Snapshot], float], seconds: float) -> float | None:
        """``increase`` per second."""
        earlier = self.before(seconds)
        if earlier is None:
            return None
        return (read(self.latest) - read(earlier)) / (self.latest.at - earlier.at)
