"""How fast things go just now: means over the last seconds of what looks at an engine saw."""

from collections import deque
from dataclasses import dataclass

from kvpager.metrics.snapshot import Snapshot

WINDOW_SECONDS = 3.0
GAP_SECONDS = 15.0  # between two looks: nobody was looking


@dataclass(frozen=True, slots=True)
class Rate:
    """``hit_rate``: share of the prompt tokens that were found; since the start where none were looked up just now."""

    tokens_per_second: float
    hit_rate: float
    faults_per_second: float


class Rates:
    """Remembers the looks of the last seconds."""

    def __init__(self) -> None:
        self._recent: deque[Snapshot] = deque()

    def now(self, snapshot: Snapshot) -> Rate:
        """Over the window, or since the look before where that is longer ago. After a pause all begins anew."""
        recent = self._recent
        if recent and snapshot.at - recent[-1].at > GAP_SECONDS:
            recent.clear()
        while len(recent) > 1 and snapshot.at - recent[0].at > WINDOW_SECONDS:
            recent.popleft()
        recent.append(snapshot)
        first = self._recent[0]
        seconds = snapshot.at - first.at
        prefix, before = snapshot.cache.prefix, first.cache.prefix
        looked_up = prefix.prompt_tokens - before.prompt_tokens
        return Rate(
            _per_second(snapshot.engine.generated_tokens - first.engine.generated_tokens, seconds),
            (prefix.hit_tokens - before.hit_tokens) / looked_up if looked_up else prefix.hit_rate,
            _per_second(_faulted(snapshot) - _faulted(first), seconds),
        )


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _faulted(snapshot: Snapshot) -> int:
    return sum(count.pages for count in snapshot.cache.faults.values())
