"""The engine on a thread of its own, beside the event loop. What crosses the border are messages, never locks.

    event loop                                     engine's thread
    submit / cancel / call  --- inbox (deque) --->  between two steps
    Answer.events()  <--- one call_soon_threadsafe for all tokens of a step ---  listeners

Knows no HTTP. An answer that nobody reads keeps its tokens, at most max_tokens of them for each choice.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

from kvpager.cache.retention_terms import Retention
from kvpager.config.attend import Attend
from kvpager.engine.engine import Engine
from kvpager.engine.intake import Prompt
from kvpager.engine.request import Completion, FinishReason, Request, TokenEvent
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import KVPagerError
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.prefix.hashing import Scope
from kvpager.server.health import Condition, Health

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_IDLE_SECONDS = 0.5  # between two looks at what falls due by itself, while nothing runs


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants of the engine: the arguments of ``Engine.submit``. ``label``: the client's id for it."""

    prompt: Prompt
    sampling: Sampling
    priority: int = 0
    scope: Scope = field(default_factory=Scope)
    retain: tuple[Retention, ...] = ()
    attend: Attend | str | None = None
    label: str = ""
    session: str = ""


class EngineGone(KVPagerError):
    """The engine does not take requests now: it starts, drains, has stopped or failed."""


class Answer:
    """A request's tokens, on the event loop's side. Leaving ``events`` early does not cancel; ``cancel`` does."""

    def __init__(self, thread: "EngineThread", ask: Ask) -> None:
        self._thread = thread
        self.ask = ask
        self.request: Request | None = None  # once it is queued; what is immutable of it may be read
        self._events: deque[TokenEvent] = deque()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._choices_left = ask.sampling.n

    @property
    def prompt_tokens(self) -> int:
        """REQUIRES: submitted."""
        assert self.request is not None
        return len(self.request.prompt)

    @property
    def is_finished(self) -> bool:
        return self._choices_left == 0 or self._failure is not None

    async def events(self) -> AsyncIterator[list[TokenEvent]]:
        """What has come since the last time, until every choice has ended. Raises EngineGone if the engine dies."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = list(self._events)
            self._events.clear()
            if batch:
                yield batch
            if self._failure is not None:
                raise self._failure
            if self._choices_left == 0:
                return

    async def completions(self) -> list[Completion]:
        """All choices, when they have ended."""
        async for _ in self.events():
            pass
        assert self.request is not None
        return list(self.request.completions())

    def cancel(self) -> None:
        """Its pages go back after the step that is under way. Cancelling again, or what has ended, does nothing."""
        if not self.is_finished:
            self._thread.cancel(self)

    # -- called on the event loop, by the thread's messages --

    def _take(self, events: list[TokenEvent]) -> None:
        self._events.extend(events)
        self._choices_left -= sum(event.finish_reason is not None for event in events)
        self._wake.set()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._wake.set()


class EngineThread:
    """``open_engine`` is called on the thread. REQUIRES: ``start`` and all else are called on one event loop."""

    def __init__(self, open_engine: Callable[[], Engine], *, stall_seconds: float, metrics: RequestMetrics) -> None:
        self._open_engine = open_engine
        self._stall_seconds = stall_seconds
        self._metrics = metrics
        self._inbox: deque[Callable[[Engine], None]] = deque()
        self._news = threading.Event()
        self._outbox: dict[Answer, list[TokenEvent]] = {}
        self._answers: set[Answer] = set()
        self._condition = Condition.STARTING
        self._reason = ""
        self._heartbeat = perf_counter()
        self._thread = threading.Thread(target=self._run, name="kvpager-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: Future[Engine] = Future()
        self.engine: Engine | None = None  # for what never changes: options, layout, limits, tokenizer

    # -- the event loop's side ------------------------------------------------------------------------------------

    async def start(self) -> Engine:
        """Opens the engine. Raises what opening it raised."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self.engine = await asyncio.wrap_future(self._opened)
        return self.engine

    @property
    def health(self) -> Health:
        silent = perf_counter() - self._heartbeat
        if self._condition is Condition.READY and silent > self._stall_seconds:
            return Health(Condition.STALLED, f"the engine has not finished a step for {silent:.0f} s")
        return Health(self._condition, self._reason)

    async def submit(self, ask: Ask) -> Answer:
        """Queues a request. Raises RequestError for one that can never run or a full queue, EngineGone."""
        answer = Answer(self, ask)
        await self._call(lambda engine: self._submit(engine, answer))
        return answer

    def cancel(self, answer: Answer) -> None:
        self._post(lambda engine: self._cancel(engine, answer))

    async def call(self, function: Callable[[Engine], _T]) -> _T:
        """Runs a function on the engine's thread between two steps. Raises what it raises, and EngineGone."""
        return await self._call(function)

    async def _call(self, function: Callable[[Engine], _T]) -> _T:
        if self._condition is not Condition.READY:
            raise EngineGone(f"the engine is {self._condition.value}")
        future: Future[_T] = Future()

        def run(engine: Engine) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(engine))
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return await asyncio.wrap_future(future)

    def _post(self, message: Callable[[Engine], None]) -> None:
        self._inbox.append(message)
        self._news.set()

    async def stop(self) -> None:
        """Cancels what runs, closes the engine and joins the thread."""
        self._condition = Condition.STOPPED
        self._news.set()
        await asyncio.to_thread(self._thread.join)

    # -- the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = self._open_engine()
        except BaseException as error:
            self._condition, self._reason = Condition.FAILED, str(error)
            self._opened.set_exception(error)
            return
        self._condition = Condition.READY
        self._opened.set_result(engine)
        with engine:
            try:
                while self._condition is not Condition.STOPPED:
                    self._turn(engine)
            except BaseException as error:
                _log.exception("the engine's thread has died")
                self._condition, self._reason = Condition.FAILED, f"{type(error).__name__} in the engine"
                self._tell(lambda: self._fail_all(EngineGone("the engine has failed")))

    def _turn(self, engine: Engine) -> None:
        self._heartbeat = perf_counter()
        self._news.clear()
        while self._inbox:
            self._inbox.popleft()(engine)
        if engine.has_work:
            engine.step()
        else:
            self._news.wait(_IDLE_SECONDS)
        if self._outbox:
            outbox, self._outbox = self._outbox, {}
            self._tell(lambda: self._deliver(outbox))

    def _submit(self, engine: Engine, answer: Answer) -> None:
        ask = answer.ask

        def listen(event: TokenEvent) -> None:
            self._outbox.setdefault(answer, []).append(event)

        answer.request = engine.submit(
            ask.prompt,
            ask.sampling,
            priority=ask.priority,
            scope=ask.scope,
            retain=ask.retain,
            attend=ask.attend,
            listener=listen,
        )
        self._answers.add(answer)

    def _cancel(self, engine: Engine, answer: Answer) -> None:
        if answer.request is not None:
            engine.cancel(answer.request.id)

    def _tell(self, message: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended: nobody listens
            self._loop.call_soon_threadsafe(message)

    def _deliver(self, outbox: dict[Answer, list[TokenEvent]]) -> None:
        for answer, events in outbox.items():
            answer._take(events)
            if answer.is_finished:
                self._answers.discard(answer)

    def _fail_all(self, error: Exception) -> None:
        for answer in self._answers:
            answer._fail(error)
        self._answers.clear()


__all__ = ["Answer", "Ask", "EngineGone", "EngineThread", "FinishReason"]
