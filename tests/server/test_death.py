"""What the engine's thread does when something in it goes wrong, and how it ends. Without HTTP; O-30 has it with."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvpager.engine.engine import Engine
from kvpager.engine.request import FinishReason
from kvpager.errors import ConfigError, InvariantError
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.server.engine_loop import MAX_FAILING_STEPS
from kvpager.server.engine_thread import EngineGone, EngineThread
from kvpager.server.health import Condition
from tests.server.threads import (
    Gate,
    GateWhen,
    RaiseOnce,
    ask,
    at_rest,
    first_of,
    has_output,
    held_steps,
    tokens_of,
    with_thread,
)

LONG = 400
SECRET = "what the client wrote"


def failing(times: int, error: Exception) -> Callable[[Engine], None]:
    """Makes the model raise so many times."""

    def prepare(engine: Engine) -> None:
        forward, left = engine.runner.forward, times

        def fail(*arguments: Any) -> Any:
            nonlocal left
            if left > 0:
                left -= 1
                raise error
            return forward(*arguments)

        engine.runner.forward = fail  # type: ignore[method-assign]

    return prepare


def test_an_engine_that_can_not_be_opened(model: str) -> None:
    def fail() -> Engine:
        raise OSError("no such model")

    async def body() -> None:
        thread = EngineThread(fail, stall_seconds=1, metrics=RequestMetrics())
        assert thread.health.condition is Condition.STARTING
        with pytest.raises(OSError, match="no such model"):
            await thread.start()
        assert thread.health.condition is Condition.FAILED
        with pytest.raises(EngineGone):
            await thread.submit(ask())
        assert not await thread.stop()

    asyncio.run(body())


def test_who_gives_up_while_it_is_opened_leaves_nothing_open(model: str) -> None:
    opened: list[Engine] = []
    is_opening, may_open = threading.Event(), threading.Event()

    def open_slowly() -> Engine:
        is_opening.set()
        assert may_open.wait(60)
        opened.append(Engine(model, num_blocks=16))
        return opened[0]

    async def body() -> None:
        thread = EngineThread(open_slowly, stall_seconds=1, metrics=RequestMetrics())
        starting = asyncio.create_task(thread.start())
        await asyncio.to_thread(is_opening.wait)
        starting.cancel()
        await asyncio.wait([starting])
        may_open.set()
        assert await thread.stop()

    asyncio.run(body())
    with pytest.raises(ConfigError, match="closed"):
        opened[0].step()


# -- the model fails -----------------------------------------------------------------------------------------------


@with_thread(max_running=1)
async def test_an_error_of_the_model_ends_what_was_computed_and_nothing_else(thread: EngineThread) -> None:
    await thread.call(failing(1, RuntimeError(SECRET)))
    struck, spared = [await thread.submit(ask(max_tokens=5)) for _ in range(2)]
    done = (await struck.completions())[0]
    assert done.finish_reason is FinishReason.ERROR
    assert done.error
    assert (await spared.completions())[0].finish_reason is FinishReason.LENGTH
    assert thread.health.is_ready


def test_an_error_of_the_model_is_logged_without_what_it_says(model: str, caplog: pytest.LogCaptureFixture) -> None:
    @with_thread()
    async def fails_once(thread: EngineThread) -> None:
        await thread.call(failing(1, RuntimeError(SECRET)))
        await (await thread.submit(ask())).completions()

    with caplog.at_level(logging.INFO):
        fails_once(model)
    assert "RuntimeError" in caplog.text
    assert SECRET not in caplog.text


@with_thread()
async def test_a_model_that_fails_every_time_is_given_up(thread: EngineThread) -> None:
    await thread.call(failing(10**9, RuntimeError("device lost")))
    for _ in range(MAX_FAILING_STEPS - 1):
        assert (await (await thread.submit(ask())).completions())[0].finish_reason is FinishReason.ERROR
        assert thread.health.is_ready
    with pytest.raises(EngineGone):
        await (await thread.submit(ask())).completions()
    assert thread.health.condition is Condition.FAILED


@with_thread()
async def test_failures_between_which_steps_succeed_add_up_to_nothing(thread: EngineThread) -> None:
    for _ in range(MAX_FAILING_STEPS + 2):
        await thread.call(failing(1, RuntimeError()))
        await (await thread.submit(ask())).completions()
        await (await thread.submit(ask(max_tokens=2))).completions()
    assert thread.health.is_ready


# -- the engine fails ----------------------------------------------------------------------------------------------


async def raise_in_the_loop(thread: EngineThread) -> None:
    thread.before_turn = RaiseOnce(ValueError(SECRET))


async def break_the_books(thread: EngineThread) -> None:
    await thread.call(failing(1, InvariantError("block 3 is free twice")))


async def raise_before_the_model(thread: EngineThread) -> None:
    def prepare(engine: Engine) -> None:
        engine._loop._decide = None  # type: ignore[method-assign, assignment]

    await thread.call(prepare)


async def break_the_books_in_a_call(thread: EngineThread) -> None:
    def fail(engine: Engine) -> None:
        raise InvariantError("a count is wrong")

    with pytest.raises(EngineGone):
        await thread.call(fail)


@pytest.mark.parametrize(
    "breaking", [raise_in_the_loop, break_the_books, raise_before_the_model, break_the_books_in_a_call]
)
def test_when_the_engine_fails_all_ends_at_once(
    model: str, breaking: Callable[[EngineThread], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    @with_thread(max_running=2)
    async def fails(thread: EngineThread) -> None:
        assert thread.engine is not None
        with held_steps(thread.engine, has_output):
            answers = [await thread.submit(ask(max_tokens=LONG)) for _ in range(4)]
            await first_of(answers[0])
            assert thread.health.is_ready  # control
            reading = [asyncio.create_task(tokens_of(answer)) for answer in answers]
            await breaking(thread)
        ends = await asyncio.gather(*reading, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineGone] * 4
        assert (thread.health.condition, thread.health.is_alive) == (Condition.FAILED, False)
        with pytest.raises(EngineGone, match="failed"):
            await thread.submit(ask())
        with pytest.raises(EngineGone, match="failed"):
            await thread.call(lambda engine: None)
        assert (await thread.snapshot()).engine.running >= 0  # what was last known
        assert not await thread.stop()

    with caplog.at_level(logging.INFO):
        fails(model)
    assert "the engine has failed" in caplog.text
    assert SECRET not in caplog.text


@with_thread()
async def test_who_waits_to_be_taken_in_is_told_too(thread: EngineThread) -> None:
    gate = Gate()
    thread.before_turn = gate
    await gate.reached()
    submitting = asyncio.create_task(thread.submit(ask()))
    calling = asyncio.create_task(thread.call(lambda engine: 1))
    await asyncio.sleep(0)
    thread.before_turn = RaiseOnce(ValueError())  # the next turn; this one reads the messages
    inbox = thread._side._inbox
    messages = list(inbox)
    inbox.clear()
    gate.open()
    with pytest.raises(EngineGone):
        await submitting
    with pytest.raises(EngineGone):
        await calling
    assert len(messages) == 2


# -- the end -------------------------------------------------------------------------------------------------------


@with_thread()
async def test_a_drain_lets_what_runs_end_and_takes_nothing_more(thread: EngineThread) -> None:
    answer = await thread.submit(ask(max_tokens=60))
    draining = asyncio.create_task(thread.drain(30))
    await asyncio.sleep(0)
    assert (thread.health.condition, thread.health.is_alive, thread.health.is_ready) == (
        Condition.DRAINING, True, False,
    )  # fmt: skip
    with pytest.raises(EngineGone, match="draining"):
        await thread.submit(ask())
    assert len(await tokens_of(answer)) == 60
    assert await draining
    await at_rest(thread)  # it still answers calls
    assert await thread.stop()
    assert thread.health.condition is Condition.STOPPED


@with_thread()
async def test_a_drain_ends_what_does_not_end_in_time(thread: EngineThread) -> None:
    thread.before_turn = gate = GateWhen(has_output)
    answer = await thread.submit(ask(max_tokens=LONG))
    reading = asyncio.create_task(tokens_of(answer))
    assert not await thread.drain(0.1)
    with pytest.raises(EngineGone, match="the server stops"):
        await reading
    gate.open()
    await at_rest(thread)
    assert await thread.stop()


@with_thread()
async def test_a_drain_of_an_idle_engine_is_done(thread: EngineThread) -> None:
    assert await thread.drain(30)


@with_thread()
async def test_stopping_ends_what_runs(thread: EngineThread) -> None:
    thread.before_turn = gate = GateWhen(has_output)
    answer = await thread.submit(ask(max_tokens=LONG))
    reading = asyncio.create_task(tokens_of(answer))
    stopping = asyncio.create_task(thread.stop())
    await asyncio.sleep(0)
    gate.open()
    assert await stopping
    with pytest.raises(EngineGone, match="stopped"):
        await reading
    assert await thread.stop()  # again
