"""One stream of the staging window: which request has which memory, what is being read, what is waited for.

    requests in order    handed out | read | being read | not begun
    memory, a ring       [---------][------][-----------]   free        what was handed out is free with the next call

All but ``begin`` and ``end`` is called by the thread that computes. Memory is not used again while a worker may write
to it: a stream that is closed early, or has given up waiting, keeps its memory until the last worker has ended.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import ConfigError, InvariantError, TierError
from kvpager.tiers.lane import Lane
from kvpager.tiers.part_reader import RowShape, read_rows
from kvpager.tiers.ring import Ring
from kvpager.tiers.staging import PartRequest, Staged
from kvpager.tiers.tier import LowerTier
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.tiers.staging_window import StagingWindow

_PIECE_BYTES = 2 << 20  # a request is read in pieces, so that one is compared while the next is being read
STEP = 4096  # memory is taken in these, so that rows can be read past the page cache
_POISON = 0xA5


@dataclass(slots=True)
class Reading:
    """One request and its memory. ``rows`` uint8 [n, width of the shape]; ``left``: pieces that have not ended."""

    request: PartRequest
    shape: RowShape
    rows: np.ndarray
    left: int
    errors: dict[int, TierError] = field(default_factory=dict)
    num_bytes: int = 0

    def staged(self, stalled: float) -> Staged:
        numbers = np.arange(len(self.rows), dtype=np.int64)
        addresses = self.rows.ctypes.data + self.shape.lead + numbers * self.shape.stride
        return Staged(addresses, self.errors, stalled, self.num_bytes)


@dataclass(slots=True)
class Piece:
    """Parts ``first`` to ``stop - 1`` of a reading: what one worker does in one go."""

    stream: "Stream"
    tier: LowerTier
    reading: Reading
    first: int
    stop: int
    errors: dict[int, TierError] = field(default_factory=dict)
    num_bytes: int = 0
    seconds: float = 0.0

    def run(self) -> None:
        if not self.stream.begin():
            return
        began, reading = monotonic(), self.reading
        rows = reading.rows[self.first : self.stop]
        try:
            self.errors, self.num_bytes = read_rows(self.tier, reading.request, self.first, rows, reading.shape)
        except BaseException as error:  # whatever happens, the step must learn that it has ended
            failed = TierError(f"{type(error).__name__}: a part of a page can't be read: {error}")
            self.errors = dict.fromkeys(range(self.first, self.stop), failed)
        self.seconds = monotonic() - began
        self.stream.end(self)


class Stream:
    """``memory`` uint8, of this stream alone. ``lanes``: where the pieces of each tier are read."""

    def __init__(
        self,
        window: "StagingWindow",
        requests: Iterator[PartRequest],
        memory: np.ndarray,
        lanes: Mapping[TierKind, Lane],
    ) -> None:
        self.memory = memory
        self._window = window
        self._requests = requests
        self._lanes = lanes
        self._ring = Ring(len(memory))
        self._upcoming: PartRequest | None = None  # there was no room for it yet
        self._readings: deque[Reading] = deque()
        self._is_out = False  # the oldest range of the ring was handed out
        self._ended = Condition(window.lock)
        self._late: TierError | None = None
        self._running = 0  # pieces that a worker has begun
        self._is_closed = False

    # -- the thread that computes -------------------------------------------------------------------------------

    def next(self) -> Staged:
        if self._late is None:
            self._take_back()
            self.read_ahead()
        reading = self._readings.popleft() if self._readings else None
        if reading is not None:
            stalled = self._wait(reading)
            if self._late is None:
                self._is_out = True
                return reading.staged(stalled)
        return self._unread(reading)

    def read_ahead(self) -> None:
        """Begins as many requests as there is room for. Raises ConfigError for one that never has room."""
        while (request := self._request()) is not None:
            tier = self._window.tier(request.tier)
            shape = RowShape.of(request, tier.part_alignment)
            count = len(request.slots)
            size = max(STEP, -(-count * shape.stride // STEP) * STEP)
            self._check_fits(request, size)
            at = self._ring.take(size)
            if at is None:
                self._upcoming = request
                return
            memory = self.memory[at : at + count * shape.stride]
            rows = memory.reshape(count, shape.stride)[:, : shape.width]
            per_piece = max(1, _PIECE_BYTES // shape.stride)
            firsts = range(0, count, per_piece)
            reading = Reading(request, shape, rows, len(firsts))
            self._readings.append(reading)
            for first in firsts:
                self._lanes[request.tier].put(Piece(self, tier, reading, first, min(count, first + per_piece)))

    def close(self) -> None:
        """Nothing else is begun; what is being read ends by itself."""
        with self._window.lock:
            if not self._is_closed:
                self._is_closed = True
                self._part_with_memory()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self) -> PartRequest | None:
        request, self._upcoming = self._upcoming, None
        return next(self._requests, None) if request is None else request

    def _take_back(self) -> None:
        """What was handed out."""
        if self._is_out:
            self._is_out = False
            at, size = self._ring.give_back()
            if self._window.debug:
                self.memory[at : at + size] = _POISON

    def _wait(self, reading: Reading) -> float:
        """Seconds that it was waited for."""
        if not reading.left or self._late is not None:
            return 0.0
        with self._window.pace.waiting():
            began = monotonic()
            with self._ended:
                if not self._ended.wait_for(lambda: not reading.left, self._window.deadline):
                    self._late = TierError(f"late: parts of pages did not come within {self._window.deadline} seconds")
                stalled = monotonic() - began
                self._window.counts[reading.request.tier].stalled += stalled
        return stalled

    def _unread(self, reading: Reading | None) -> Staged:
        """The next request, after one was late: whether it would come is not waited for any more."""
        request = self._request() if reading is None else reading.request
        if request is None or self._late is None:
            raise InvariantError("a stream of the staging window is asked for more requests than it was given")
        count = len(request.slots)
        return Staged(np.zeros(count, np.int64), dict.fromkeys(range(count), self._late))

    def _check_fits(self, request: PartRequest, size: int) -> None:
        half = self._window.memory.half  # a stream may have no more
        if size > half:
            raise ConfigError(
                f"{len(request.slots)} parts of {request.size} bytes take {size} bytes of a staging window of "
                f"{self._window.num_bytes}, of which one request may have {half}: make it at least {2 * size} bytes"
            )

    # -- workers ------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Whether a piece is still wanted."""
        with self._window.lock:
            if self._is_closed or self._late is not None:
                return False
            self._running += 1
            return True

    def end(self, piece: Piece) -> None:
        reading = piece.reading
        with self._ended:
            counts = self._window.counts[reading.request.tier]
            counts.parts += piece.stop - piece.first
            counts.bytes += piece.num_bytes
            counts.seconds += piece.seconds
            counts.failed += len(piece.errors)
            reading.errors |= piece.errors
            reading.num_bytes += piece.num_bytes
            reading.left -= 1
            self._running -= 1
            if not reading.left:
                self._ended.notify_all()
            if self._is_closed:
                self._part_with_memory()

    def _part_with_memory(self) -> None:
        if not self._running:
            self._window.memory.give_back(self.memory)
