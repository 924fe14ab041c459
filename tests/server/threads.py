"""An engine's thread for tests, beside an event loop of its own and without HTTP, and ways to hold and break it.

@with_thread(num_blocks=64)
async def test_x(thread: EngineThread) -> None: ...
"""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from kvpager.config import Options
from kvpager.engine.engine import Engine
from kvpager.engine.request import TokenEvent
from kvpager.engine.sampling_params import Sampling
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.server.answer import Answer, Ask
from kvpager.server.engine_thread import EngineThread
from kvpager.server.health import Condition
from tests.engine.engines import wrapped

LIMIT = 60  # seconds of a test: something waits for ever


class Gate:
    """Holds an engine's thread between two steps: ``thread.before_turn = gate``."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self._may_go = threading.Event()

    def __call__(self, engine: Engine) -> None:
        self.is_reached.set()
        assert self._may_go.wait(LIMIT)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.is_reached.wait, LIMIT)

    def open(self) -> None:
        self._may_go.set()


class RaiseOnce:
    """Raises in the thread's own loop: ``thread.before_turn = RaiseOnce(error)``."""

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def __call__(self, engine: Engine) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def greedy(max_tokens: int, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


def ask(prompt: str = "the moon", max_tokens: int = 8, **more: Any) -> Ask:
    return Ask(prompt, greedy(max_tokens), **more)


@asynccontextmanager
async def running_thread(
    model: str,
    *,
    num_blocks: int = 64,
    stall_seconds: float = 600,
    max_seconds: float | None = None,
    metrics: RequestMetrics | None = None,
    **options: Any,
) -> AsyncIterator[EngineThread]:
    """Stopped at the end, when all that was asked has ended; its books are checked unless it has died."""

    def open_engine() -> Engine:
        return Engine(model, options=Options(model=model, page_size=4, **options), num_blocks=num_blocks)

    thread = EngineThread(
        open_engine, stall_seconds=stall_seconds, max_seconds=max_seconds, metrics=metrics or RequestMetrics()
    )
    await thread.start()
    try:
        yield thread
        if thread.health.condition is Condition.READY:
            await at_rest(thread)
    finally:
        gate = thread.before_turn
        if isinstance(gate, Gate):
            gate.open()
        await thread.stop()


def with_thread(**settings: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[[str], None]]:
    """A test of a coroutine that takes a running thread; the fixture ``model`` is what it runs."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[str], None]:
        @functools.wraps(test)
        def run(model: str) -> None:
            async def body() -> None:
                async with asyncio.timeout(LIMIT), running_thread(model, **settings) as thread:
                    await test(thread)

            asyncio.run(body())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest looks for the fixtures of what is wrapped
        return run

    return decorate


async def at_rest(thread: EngineThread) -> None:
    """Waits until nothing runs or moves, and checks that the books say so: no page is mapped, held or on its way."""

    def is_at_rest(engine: Engine) -> bool:
        counts, lower = engine.cache.pool.counts(), engine.cache.lower
        is_moving = lower is not None and lower.migration.num_open > 0
        return not (engine.has_work or is_moving or counts.used or counts.moving)

    while not await thread.call(is_at_rest):
        await asyncio.sleep(0.01)
    await thread.call(lambda engine: engine.check())
    assert thread.num_open == 0
    assert not await thread.call(lambda engine: dict(thread.labels))


async def tokens_of(answer: Answer) -> list[int]:
    return [event.token async for batch in answer.events() for event in batch if event.token is not None]


async def first_of(answer: Answer) -> TokenEvent:
    """The first thing that comes of an answer."""
    events = answer.events()
    try:
        return (await anext(events))[0]
    finally:
        await events.aclose()  # type: ignore[attr-defined]


class GateWhen(Gate):
    """Holds the thread once ``condition``, which may look only, is true between two steps, until it is opened."""

    def __init__(self, condition: Callable[[Engine], object]) -> None:
        super().__init__()
        self._condition = condition

    def __call__(self, engine: Engine) -> None:
        if self.is_reached.is_set() or self._condition(engine):
            super().__call__(engine)


@contextmanager
def held_steps(engine: Engine, condition: Callable[[Engine], object]) -> Iterator[None]:
    """While ``condition``, which may look only, is true the engine computes nothing; its thread goes on, and takes what
    it is told. So what runs lasts as long as a test needs it, however slow the machine is."""

    def step(original: Callable[[], list[TokenEvent]]) -> list[TokenEvent]:
        if condition(engine):
            time.sleep(0.001)
            return []
        return original()

    with wrapped(engine, "step", step):
        yield


def has_output(engine: Engine) -> bool:
    """Something that runs has a token."""
    return any(branch.output for branch in engine.branches())
