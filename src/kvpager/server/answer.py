"""A request as the event loop sees it: what a client asked, and what has come of it so far.

    async with await thread.submit(ask) as answer:      leaving cancels what has not ended, whatever the reason
        async for batch in answer.events(): ...

Knows no HTTP and no engine, only what the engine's thread tells of the request. An answer that nobody reads keeps its
tokens: at most max_tokens of them for each choice.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import TracebackType

from kvpager.cache.retention_terms import Retention
from kvpager.config.attend import Attend
from kvpager.engine.endings import EndedBy
from kvpager.engine.guide import Guide
from kvpager.engine.intake import Prompt
from kvpager.engine.request import Completion, FinishReason, Request, TokenEvent
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import KVPagerError
from kvpager.prefix.hashing import Scope


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants of the engine: the arguments of ``Engine.submit``. ``label``: the client's id for it.
    ``traceparent``: the header that says which trace the request is part of; "" if there was none."""

    prompt: Prompt
    sampling: Sampling
    priority: int = 0
    scope: Scope = field(default_factory=Scope)
    retain: tuple[Retention, ...] = ()
    attend: Attend | str | None = None
    guide: Guide | None = None
    ended: EndedBy | None = None
    label: str = ""
    session: str = ""
    traceparent: str = ""


class EngineGone(KVPagerError):
    """The engine does not take or answer requests now: it starts, stalls, drains, has stopped or failed.

    For HTTP: ``status``, and the seconds after which to try again.
    """

    status = 503

    def __init__(self, message: str, retry_after: int = 10) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Answer:
    """A context: leaving it cancels the request unless it has ended."""

    def __init__(self, ask: Ask, cancel: "Callable[[Answer], None]") -> None:
        self.ask = ask
        self.request: Request | None = None  # once it is queued; what is immutable of it may be read
        self.is_expired = False  # it took longer than a request may
        self.is_cancelled = False
        self.limit: asyncio.TimerHandle | None = None  # ends it when it takes too long
        self._cancel = cancel
        self._claim = threading.Lock()
        self._events: deque[TokenEvent] = deque()
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._ends: dict[int, FinishReason] = {}

    @property
    def prompt_tokens(self) -> int:
        """REQUIRES: submitted."""
        assert self.request is not None
        return len(self.request.prompt)

    @property
    def is_finished(self) -> bool:
        return len(self._ends) == self.ask.sampling.n or self._failure is not None

    async def events(self) -> AsyncIterator[list[TokenEvent]]:
        """What has come since the last time, until every choice has ended. Raises EngineGone if the engine dies."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = list(self._events)
            self._events.clear()
            if batch:
                yield batch
            if self._events:
                continue  # they came while the others were read, and are told before any end
            if self._failure is not None:
                raise self._failure
            if self.is_finished:
                return

    async def completions(self) -> list[Completion]:
        """All choices, when they have ended. Being cancelled meanwhile cancels the request."""
        async with self:
            async for _ in self.events():
                pass
        assert self.request is not None
        return [
            replace(each, finish_reason=self._ends[each.choice], error=self.error_of(each.choice))
            for each in self.request.completions()
        ]

    def error_of(self, choice: int) -> str:
        """Why a choice ended in an error, for the client; "" if it did not. REQUIRES: the choice has ended."""
        if self._ends.get(choice) is not FinishReason.ERROR:
            return ""
        assert self.request is not None
        return self.request.branches[choice].error or "the request took too long and was ended before its first token"

    def cancel(self) -> None:
        """Its pages go back after the step that is under way. Cancelling again, or what has ended, does nothing."""
        if not (self.is_finished or self.is_cancelled):
            self.is_cancelled = True
            self._cancel(self)

    def claim(self) -> bool:
        """Whether the caller is the first: the engine, to begin it, or the event loop, to drop it. From any thread."""
        return self._claim.acquire(blocking=False)

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    # -- called on the event loop, by the thread's messages --

    def take(self, events: list[TokenEvent]) -> None:
        self._events.extend(events)
        for event in events:
            if event.finish_reason is not None:
                self._ends[event.choice] = event.finish_reason
        self._wake.set()

    def fail(self, error: Exception) -> None:
        if not self.is_finished:
            self._failure = error
            self._wake.set()
