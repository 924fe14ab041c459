"""What the engine's thread does: read the messages, make a step, tell what came of it, and again.

An error of the model ends the choices that were being computed, and the loop goes on. Anything else that goes wrong, in
the engine's books or here, ends the loop for good: ``death`` says so, and whoever waits is told at once. Knows no HTTP
and no coroutine; what it has to tell goes through ``tell``, once a step.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

from kvpager.engine.engine import Engine
from kvpager.engine.request import FinishReason, TokenEvent
from kvpager.errors import InvariantError
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.metrics.snapshot import Snapshot, take
from kvpager.metrics.spans import Asked, Spans
from kvpager.server.answer import Answer, Ask
from kvpager.server.log_filter import trace_without_content
from kvpager.server.timing import Timing
from kvpager.server.waiting import Waiting

_log = logging.getLogger(__name__)
_IDLE_SECONDS = 0.5  # between two looks at what falls due by itself, while nothing runs
_MOVING_SECONDS = 0.02  # the same, while pages are on their way between tiers
MAX_FAILING_STEPS = 8  # one after the other; the device is gone then, not a request at fault

Message = Callable[[Engine], None]


class Label(NamedTuple):
    """What a client calls its request, for views."""

    request: str
    session: str


@dataclass(slots=True)
class News:
    """What one turn gave. ``results``: of calls, to be handed over on the event loop; ``events``: of answers."""

    results: list[Callable[[], None]] = field(default_factory=list)
    events: dict[Answer, list[TokenEvent]] = field(default_factory=dict)


class EngineLoop:
    """``tell``: hands news to whoever waits for them; ``died``: says that there won't be any. Both from this thread.

    Other threads may call ``post`` and ``stop``, and look at ``death``, ``heartbeat`` and ``snapshot``.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        metrics: RequestMetrics,
        *,
        tell: Callable[[News], None],
        died: Callable[[], None],
    ) -> None:
        self.opened: Future[Engine] = Future()
        self.death = ""  # why it has ended, unless it was stopped
        self.heartbeat = perf_counter()  # when the latest turn began
        self.waiting = Waiting(1)
        self.snapshot: Snapshot | None = None  # the first one; not before it is opened
        self.labels: dict[int, Label] = {}  # by request id
        self.before_turn: Message | None = None
        self.spans: Spans | None = None  # where requests are traced
        self.news = News()
        self._open_engine, self._metrics, self._tell, self._died = open_engine, metrics, tell, died
        self._inbox: deque[Message] = deque()
        self._has_mail = threading.Event()
        self._is_stopping = False
        self._has_failed_choice, self._failing_steps = False, 0

    def post(self, message: Message) -> None:
        """``message`` runs between two steps, after those that were posted before. What it raises ends the loop."""
        self._inbox.append(message)
        self._has_mail.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._has_mail.set()

    # -- this thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.opened.set_running_or_notify_cancel()  # who gives up waiting for it doesn't cancel it
        try:
            engine = self._open_engine()
            self.waiting.limit = engine.options.max_waiting
            self.snapshot = take(engine, perf_counter())
        except BaseException as error:
            self.death = f"{type(error).__name__} while it was opened"
            self.opened.set_exception(error)
            return
        self.heartbeat = perf_counter()
        self.opened.set_result(engine)
        try:
            while not self._is_stopping:
                self._turn(engine)
        except BaseException as error:
            self._die(error)
        try:
            engine.close()
        except BaseException as error:
            self._die(error)

    def _die(self, error: BaseException) -> None:
        self.death = self.death or f"{type(error).__name__} in the engine"
        _log.critical("the engine has failed and serves no more: %s", trace_without_content(error))
        _log.debug("the whole error", exc_info=error)
        self._died()

    def _turn(self, engine: Engine) -> None:
        self.heartbeat = perf_counter()
        if self.before_turn is not None:
            self.before_turn(engine)
        self._has_mail.clear()
        for _ in range(len(self._inbox)):  # what comes meanwhile waits for the next turn: steps must go on
            self._inbox.popleft()(engine)
        self.waiting.queued = engine.num_waiting  # what was cancelled waits no more
        self._send()  # who was refused, or asked for something, need not wait for the step
        if engine.has_work:
            self._step(engine)
        else:
            self._idle(engine)
        if engine.cache.page_log is not None:
            engine.cache.page_log.drain()
        self.waiting.queued = engine.num_waiting
        self._send()

    def _step(self, engine: Engine) -> None:
        self._has_failed_choice = False
        try:
            engine.step()
        except InvariantError:
            raise
        except Exception as error:
            self._failing_steps += 1
            if not self._has_failed_choice or self._failing_steps >= MAX_FAILING_STEPS:
                raise
            _log.error("a step failed, and the requests in it with it: %s", trace_without_content(error))
            _log.debug("the whole error", exc_info=error)
        else:
            self._failing_steps = 0

    def _idle(self, engine: Engine) -> None:
        engine.cache.tick()
        lower = engine.cache.lower
        is_moving = lower is not None and lower.migration.num_open > 0
        self._has_mail.wait(_MOVING_SECONDS if is_moving else _IDLE_SECONDS)

    def _send(self) -> None:
        if self.news.results or self.news.events:
            news, self.news = self.news, News()
            self._tell(news)

    # -- messages -------------------------------------------------------------------------------------------------

    def begin(self, engine: Engine, answer: Answer, came: float) -> None:
        """Queues a request that nobody has dropped meanwhile. ``came``: when it reached the server."""
        if not answer.claim():
            return
        self.waiting.taken += 1
        ask = answer.ask

        def listen(event: TokenEvent) -> None:
            event = _in_time(event, answer)
            self.news.events.setdefault(answer, []).append(event)
            timing.saw(event)
            if trace is not None:
                trace.saw(event)
            if event.finish_reason is not None:
                self._has_failed_choice |= event.finish_reason is FinishReason.ERROR
                if request.is_finished:
                    self.labels.pop(request.id, None)

        request = answer.request = engine.submit(
            ask.prompt,
            ask.sampling,
            priority=ask.priority,
            scope=ask.scope,
            retain=ask.retain,
            attend=ask.attend,
            guide=ask.guide,
            ended=ask.ended,
            listener=listen,
        )
        timing = Timing(self._metrics, came, request)
        trace = None if self.spans is None else self.spans.begin(_asked(ask, came), request)
        self._metrics.came()
        self.waiting.queued = engine.num_waiting
        self.labels[request.id] = Label(ask.label, ask.session)

    def end(self, engine: Engine, answer: Answer) -> None:
        """Cancels a request that was begun."""
        if answer.request is not None:
            engine.cancel(answer.request.id)


def _asked(ask: Ask, came: float) -> Asked:
    operation = "chat" if ask.label.startswith("chat") else "text_completion"
    return Asked(operation, came, ask.label, ask.session, ask.traceparent)


def _in_time(event: TokenEvent, answer: Answer) -> TokenEvent:
    """What took too long was cancelled, but its client did not ask for that."""
    if not (answer.is_expired and event.finish_reason is FinishReason.CANCELLED):
        return event
    assert answer.request is not None
    has_tokens = bool(answer.request.branches[event.choice].output)
    return replace(event, finish_reason=FinishReason.LENGTH if has_tokens else FinishReason.ERROR)
