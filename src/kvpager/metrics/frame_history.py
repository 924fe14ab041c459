"""The frames of the last minutes, for scrubbing back in time: compressed, and at most so many bytes of them.

Kept as they were sent: runs that begin with a whole frame, followed by changes. The oldest run goes first, so that
what is left can always be read. Any thread may add; one that reads works on its own list.
"""

import json
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvpager.metrics.frames import Encoded, Frame, read_frame

MAX_BYTES = 16 << 20
_OVERHEAD = 100  # bytes that Python takes for one
_FAST = 1  # zlib's level
_MAX_DEEDS = 200  # of frames that were left out, in the next one


@dataclass(frozen=True, slots=True)
class _Kept:
    time: float
    packed: bytes


class FrameHistory:
    """``max_bytes``: of compressed frames; the newest run stays even where it is larger."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: deque[list[_Kept]] = deque()
        self.num_bytes = 0

    def __len__(self) -> int:
        return sum(len(run) for run in self._runs)

    def add(self, time: float, encoded: Encoded) -> None:
        """The next frame. REQUIRES: one that says changes follows the frame that it changes."""
        kept = _Kept(time, zlib.compress(encoded.text.encode(), _FAST))
        if encoded.is_whole:
            self._runs.append([kept])
        elif self._runs:
            self._runs[-1].append(kept)
        else:
            return  # what it changes was let go
        self.num_bytes += len(kept.packed) + _OVERHEAD
        while self.num_bytes > self._max_bytes and len(self._runs) > 1:
            self.num_bytes -= sum(len(each.packed) + _OVERHEAD for each in self._runs.popleft())

    def frames(self, since: float) -> Iterator[Frame]:
        """Every frame that was taken at ``since`` (unix seconds) or later, the oldest first."""
        return _read(self._reaching(since), since)

    def figures(self, since: float) -> Iterator[dict[str, Any]]:
        """Those of ``frames``, without the blocks."""
        for kept in self._reaching(since):
            if kept.time >= since:
                figures = json.loads(zlib.decompress(kept.packed))
                del figures["blocks"]
                yield figures

    def thinned(self, since: float, most: int) -> Iterator[Frame]:
        """At most ``most`` of ``frames``, evenly spread, the newest among them. What happened in those that are left
        out (``activity``) is told by the next one."""
        reaching = self._reaching(since)
        count = sum(kept.time >= since for kept in reaching)
        every = max(1, -(-count // most))
        deeds: list[dict[str, Any]] = []
        for place, frame in enumerate(_read(reaching, since)):
            deeds += frame.figures.get("activity", [])
            if (count - 1 - place) % every == 0:
                figures = {**frame.figures, "activity": deeds[-_MAX_DEEDS:]}
                yield Frame(frame.seq, frame.time, figures, frame.blocks)
                deeds = []

    def _reaching(self, since: float) -> list[_Kept]:
        """The runs that reach into that time."""
        return [kept for run in list(self._runs) if run[-1].time >= since for kept in list(run)]


def _read(kept: list[_Kept], since: float) -> Iterator[Frame]:
    frame: Frame | None = None
    for each in kept:
        frame = read_frame(zlib.decompress(each.packed).decode(), frame)
        if each.time >= since:
            yield frame
