"""Frames for all who watch: taken only when somebody asks, a few a second, each one once however many watch.

    watcher ---after(7)---+
    watcher ---after(7)---+--> one task: waits until a frame is due, looks at the engine, makes it ready ---> frame 8
    /v1/kv/frame ---------+

A watcher that was slow asks for what comes after the last frame it got, and gets the newest, whole: nothing piles up.
Large frames are taken more rarely, so that a watcher is sent a bounded number of bytes a second.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fastapi import Request

from kvpager.metrics.frame_history import FrameHistory
from kvpager.metrics.frame_taker import FrameTaker, Look
from kvpager.metrics.frames import Encoded, Frame
from kvpager.server.engine_thread import EngineGone, EngineThread
from kvpager.server.errors import ApiError
from kvpager.server.health import Condition
from kvpager.server.service import service_of

MAX_WATCHERS = 16
INTERVAL = 0.25  # seconds between two frames, at least
MAX_BYTES_PER_SECOND = 2 << 20  # to one watcher
WHOLE_EVERY = 10.0  # seconds: so far back a run of changes reaches
_RETRY_SECONDS = 5


class Published:
    """A frame, encoded once for all: as it was ``encoded`` after the frame before it, and ``whole`` if somebody needs
    that."""

    def __init__(self, frame: Frame, encoded: Encoded) -> None:
        self.frame, self._encoded = frame, encoded
        self._whole = encoded.text.encode() if encoded.is_whole else None
        self._changes = None if encoded.is_whole else encoded.text.encode()

    @property
    def num_bytes(self) -> int:
        return len(self._encoded.text)

    @property
    def is_whole(self) -> bool:
        return self._encoded.is_whole

    async def whole(self) -> bytes:
        if self._whole is None:
            self._whole = (await asyncio.to_thread(self.frame.encode)).text.encode()
        return self._whole

    async def event_after(self, seq: int) -> bytes:
        """For a watcher whose last frame was ``seq``, 0 for none."""
        follows = self._changes is not None and seq == self.frame.seq - 1
        data = self._changes if follows else await self.whole()
        assert data is not None
        return b"event: frame\r\ndata: " + data + b"\r\n\r\n"


class FrameFeed:
    """REQUIRES: one event loop. ``history`` has what was published."""

    def __init__(self, thread: EngineThread, taker: FrameTaker, clock: Callable[[], float] = time.monotonic) -> None:
        self.history = FrameHistory()
        self.num_watchers = 0
        self.num_taken = 0
        self.taker = taker
        self.looking_back = asyncio.Lock()  # one at a time: it takes a while, and memory
        self._thread, self._clock = thread, clock
        self._latest: Published | None = None
        self._taken_at = 0.0
        self._due = 0.0
        self._whole_due = 0.0
        self._taking: asyncio.Task[Published] | None = None

    def check_room(self) -> None:
        """Raises ApiError where there is no place left among the watchers."""
        if self.num_watchers >= MAX_WATCHERS:
            raise ApiError(
                429,
                f"{MAX_WATCHERS} clients watch the memory already; close one",
                code="too_many_watchers",
                retry_after=_RETRY_SECONDS,
            )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A place among the watchers. Raises ApiError where there is none left."""
        self.check_room()
        self.num_watchers += 1
        try:
            yield
        finally:
            self.num_watchers -= 1

    async def events(self) -> AsyncIterator[bytes]:
        """What is sent to one watcher, for ever: a whole frame, then changes. Raises EngineGone."""
        seq = 0
        while True:
            published = await (self.after(seq) if seq else self.now())
            yield await published.event_after(seq)
            seq = published.frame.seq

    async def now(self) -> Published:
        """A frame no older than the interval."""
        latest = self._latest
        if latest is not None and self._clock() - self._taken_at < INTERVAL:
            return latest
        return await self.after(0 if latest is None else latest.frame.seq)

    async def after(self, seq: int) -> Published:
        """The newest frame behind ``seq``, as soon as there is one."""
        if self._latest is not None and self._latest.frame.seq > seq:
            return self._latest
        if self._taking is None:
            self._taking = asyncio.create_task(self._take())
            self._taking.add_done_callback(self._taken)
        return await asyncio.shield(self._taking)

    async def _take(self) -> Published:
        await asyncio.sleep(max(0.0, self._due - self._clock()))
        condition = self._thread.health.condition
        if condition not in (Condition.READY, Condition.STALLED):
            raise EngineGone(f"the engine is {condition.value}")
        look = await self._thread.call(self.taker.look)
        self._taken_at = self._clock()
        before = None if self._latest is None or self._taken_at >= self._whole_due else self._latest.frame
        published = await asyncio.to_thread(self._publish, look, before)
        if published.is_whole:
            self._whole_due = self._taken_at + WHOLE_EVERY
        self._due = self._taken_at + max(INTERVAL, published.num_bytes / MAX_BYTES_PER_SECOND)
        self._latest = published
        self.num_taken += 1
        return published

    def _publish(self, look: Look, before: Frame | None) -> Published:
        """Makes it and encodes it: on another thread, as it takes longer than the event loop may be held up."""
        frame = self.taker.frame(look)
        encoded = frame.encode(before)
        self.history.add(frame.time, encoded)
        return Published(frame, encoded)

    def _taken(self, task: "asyncio.Task[Published]") -> None:
        self._taking = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; if nobody does any more, it isn't worth a line in the log


async def feed_of(request: Request) -> FrameFeed:
    """The application's only one: ``Annotated[FrameFeed, Depends(feed_of)]``."""
    state = request.app.state
    if not hasattr(state, "frame_feed"):
        service = service_of(request)
        thread = service.thread
        taker = FrameTaker(service.model_name, service.started, lambda: thread.labels, lambda: service.alerts.firing)
        state.frame_feed = FrameFeed(thread, taker)
    feed: FrameFeed = state.frame_feed
    return feed
