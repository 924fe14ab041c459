"""How many requests wait, counted where they come in: a surplus is refused at once, even while a long step runs.

    posted - dropped - taken    in the inbox of the engine's thread
    queued                      in the engine's own queue, as it last said

``posted`` and ``dropped`` are written by the event loop alone, ``taken`` and ``queued`` by the engine's thread alone;
so no count needs a lock. Knows no request.
"""

import math
from collections import deque

from kvpager.errors import QueueFull

_REMEMBERED = 32  # endings, to tell how fast requests go
_LONGEST = 60  # seconds that a client is told to wait


class Waiting:
    """``limit``: requests that may wait."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.posted = self.dropped = self.taken = self.queued = 0
        self._endings: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def count(self) -> int:
        return self.posted - self.dropped - self.taken + self.queued

    def ended(self, now: float) -> None:
        """A request has ended."""
        self._endings.append(now)

    def check(self, now: float) -> None:
        """Raises QueueFull where no more may wait."""
        if (count := self.count) >= self.limit:
            raise QueueFull(count, self._seconds_for(count, now))

    def _seconds_for(self, count: int, now: float) -> int:
        """After which so many will have begun, at the pace of the last ones."""
        if not self._endings:
            return 1
        pace = (now - self._endings[0]) / len(self._endings)
        return min(_LONGEST, max(1, math.ceil(pace * count)))
