"""The engine on a thread of its own, beside the event loop. What crosses the border are messages, never shared state.

    event loop (here)                                   engine's thread (engine_loop.py)
    submit / cancel / call  --------- inbox --------->  between two steps
    Answer.events()  <------ one call_soon_threadsafe for all that a step gave ------  listeners

If the thread dies, every open request ends with EngineGone at once, and so does whatever comes later. Knows no HTTP.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from kvpager.engine.engine import Engine
from kvpager.engine.request import FinishReason
from kvpager.errors import InvariantError, QueueFull, RequestError
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.metrics.snapshot import Snapshot, take
from kvpager.metrics.spans import Spans
from kvpager.server.answer import Answer, Ask, EngineGone
from kvpager.server.engine_loop import EngineLoop, Label, Message, News
from kvpager.server.health import Condition, Health, of_silence

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_FRESH_SECONDS = 1.0  # so old may a snapshot be
_BUSY_SECONDS = 2.0  # who asks for a snapshot waits no longer for the engine; nor does one that took too long
_CLOSE_SECONDS = 20.0  # that closing the engine may take: a disk tier writes what it holds


class EngineThread:
    """``open_engine`` is called on the thread. REQUIRES: ``start`` and all else are called on one event loop.

    ``stall_seconds``: without a finished step or an idle turn, after which it counts as stalled. ``max_seconds``: that
    a request may take; then its choices end, with LENGTH where they have a token, else with ERROR. ``before_turn``: is
    called on the thread between any two steps; tests let things go wrong there.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        *,
        stall_seconds: float,
        metrics: RequestMetrics,
        max_seconds: float | None = None,
        before_turn: Message | None = None,
    ) -> None:
        self.engine: Engine | None = None  # for what never changes: options, layout, limits, tokenizer
        self._stall_seconds, self._max_seconds = stall_seconds, max_seconds
        self._metrics = metrics
        self._side = EngineLoop(open_engine, metrics, tell=self._tell, died=self._tell_death)
        self._side.before_turn = before_turn
        self._thread = threading.Thread(target=self._side.run, name="kvpager-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._phase = Condition.STARTING
        self._answers: set[Answer] = set()
        self._calls: set[asyncio.Future[Any]] = set()
        self._quiet = asyncio.Event()  # no answer is open
        self._quiet.set()
        self._fetching: asyncio.Task[None] | None = None

    async def start(self) -> Engine:
        """Opens the engine, unless it is open. Raises what opening it raised."""
        if self.engine is not None:
            return self.engine
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self.engine = await asyncio.wrap_future(self._side.opened)
        self._phase = Condition.READY
        return self.engine

    # -- what there is to know ------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        if self._side.death:
            return Health(Condition.FAILED, self._side.death)
        if self._phase is not Condition.READY:
            return Health(self._phase)
        return of_silence(perf_counter() - self._side.heartbeat, self._stall_seconds)

    @property
    def num_open(self) -> int:
        """Requests that have come and not ended."""
        return len(self._answers)

    @property
    def num_waiting(self) -> int:
        """Requests that have come and not begun, counted on this side."""
        return self._side.waiting.count

    @property
    def labels(self) -> dict[int, Label]:
        """What clients call the requests that are under way, by request id. Read it on the engine's thread."""
        return self._side.labels

    def trace_into(self, spans: Spans) -> None:
        """Requests that begin from now on are traced."""
        self._side.spans = spans

    @property
    def before_turn(self) -> Message | None:
        return self._side.before_turn

    @before_turn.setter
    def before_turn(self, message: Message | None) -> None:
        self._side.before_turn = message

    async def snapshot(self, max_age: float = _FRESH_SECONDS) -> Snapshot:
        """At most ``max_age`` seconds old; the last one there is if the engine is busy for longer than two, or gone."""
        assert self._side.snapshot is not None, "not started"
        if perf_counter() - self._side.snapshot.at > max_age:
            if self._fetching is None or self._fetching.done():
                self._fetching = asyncio.create_task(self._fetch())
            await asyncio.wait({self._fetching}, timeout=_BUSY_SECONDS)
        return self._side.snapshot

    async def _fetch(self) -> None:
        with suppress(EngineGone):
            self._side.snapshot = await self.call(lambda engine: take(engine, perf_counter()))

    # -- requests -------------------------------------------------------------------------------------------------

    async def submit(self, ask: Ask) -> Answer:
        """Queues a request. Raises RequestError for one that can never run, QueueFull and EngineGone at once.

        Being cancelled meanwhile cancels the request; then the engine may never hear of it.
        """
        came = perf_counter()
        try:
            if not self.health.is_ready:
                raise self._gone()
            self._side.waiting.check(came)
            return await self._submit(ask, came)
        except (EngineGone, RequestError) as error:
            self._metrics.refused(_reason(error))
            raise

    async def _submit(self, ask: Ask, came: float) -> Answer:
        answer = Answer(ask, self._cancel)
        self._answers.add(answer)
        self._quiet.clear()
        self._side.waiting.posted += 1
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._call(lambda engine: self._side.begin(engine, answer, came))
        except BaseException as error:
            self._forget(answer)
            answer.cancel()
            if isinstance(error, TimeoutError):
                raise EngineGone("the engine did not take the request in the time that one may take") from None
            raise
        if self._max_seconds is not None:
            assert self._loop is not None
            left = self._max_seconds - (perf_counter() - came)
            answer.limit = self._loop.call_later(max(0.0, left), self._expire, answer)
        return answer

    async def call(self, function: Callable[[Engine], _T]) -> _T:
        """Runs a function on the engine's thread between two steps. Raises what it raises, and EngineGone."""
        if self._side.death or self._phase not in (Condition.READY, Condition.DRAINING):
            raise self._gone()
        return await self._call(function)

    def _gone(self) -> EngineGone:
        return EngineGone(f"the engine is {self.health.condition.value}; try again later, or another server")

    async def _call(self, function: Callable[[Engine], _T]) -> _T:
        assert self._loop is not None
        future: asyncio.Future[_T] = self._loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)

        def run(engine: Engine) -> None:
            if future.cancelled():
                return
            try:
                result = function(engine)
            except Exception as error:
                self._side.news.results.append(partial(_settle, future, None, error))
                if isinstance(error, InvariantError):
                    raise
            else:
                self._side.news.results.append(partial(_settle, future, result, None))

        self._side.post(run)
        return await future

    def _cancel(self, answer: Answer) -> None:
        if answer.claim():
            self._side.waiting.dropped += 1  # the engine has not heard of it, and won't
        else:
            self._side.post(lambda engine: self._side.end(engine, answer))

    def _expire(self, answer: Answer) -> None:
        assert self._loop is not None
        if not (answer.is_finished or answer.is_cancelled):
            answer.is_expired = True
            answer.cancel()
            gone = EngineGone("the request took longer than one may, and the engine does not answer")
            answer.limit = self._loop.call_later(_BUSY_SECONDS, self._fail, answer, gone)

    # -- the end --------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> bool:
        """Takes no more requests; those under way get so long, then they end with EngineGone. Whether all were done."""
        self._phase = Condition.DRAINING
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        is_done = not self._answers
        for answer in tuple(self._answers):
            answer.cancel()
            self._fail(answer, EngineGone("the server stops, and the request did not end in time"))
        return is_done

    async def stop(self) -> bool:
        """Cancels what runs, closes the engine and ends the thread; whether it did end, without having died.

        Stopping again does nothing but say so.
        """
        self._phase = Condition.STOPPED
        self._side.stop()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)
        self._fail_all()
        if self._thread.is_alive():
            _log.error("the engine has not ended within %.0f s of being asked to", _CLOSE_SECONDS)
        return not (self._thread.is_alive() or self._side.death)

    # -- what the engine's thread tells ---------------------------------------------------------------------------

    def _tell(self, news: News) -> None:
        self._soon(partial(self._deliver, news))

    def _tell_death(self) -> None:
        self._soon(self._fail_all)

    def _soon(self, message: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended: nobody listens
            self._loop.call_soon_threadsafe(message)

    def _deliver(self, news: News) -> None:
        for settle in news.results:
            settle()
        for answer, events in news.events.items():
            answer.take(events)
            if answer.is_finished:
                self._side.waiting.ended(perf_counter())
                self._forget(answer)

    def _forget(self, answer: Answer) -> None:
        if answer.limit is not None:
            answer.limit.cancel()
        self._answers.discard(answer)
        if not self._answers:
            self._quiet.set()

    def _fail(self, answer: Answer, error: Exception) -> None:
        answer.fail(error)
        self._forget(answer)

    def _fail_all(self) -> None:
        gone = EngineGone(f"the engine has {'failed' if self._side.death else 'stopped'}")
        for answer in tuple(self._answers):
            self._fail(answer, gone)
        for future in tuple(self._calls):
            _settle(future, None, gone)


def _settle(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():  # whoever asked is gone
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _reason(error: Exception) -> str:
    if isinstance(error, QueueFull):
        return "queue_full"
    return "unavailable" if isinstance(error, EngineGone) else "invalid"


__all__ = ["Answer", "Ask", "EngineGone", "EngineThread", "FinishReason", "Label", "QueueFull"]
