"""The engine beside an event loop: what comes of requests, and how they are refused, cancelled, counted and ended."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import httpx
import pytest

from kvpager.cache.retention_terms import Retention
from kvpager.engine.engine import Engine
from kvpager.engine.request import FinishReason
from kvpager.errors import QueueFull, RequestError
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.server import engine_thread
from kvpager.server.engine_thread import Ask, EngineGone, EngineThread
from kvpager.server.health import Condition
from tests.engine.tiers import VirtualClock
from tests.server.serving import Serving
from tests.server.threads import (
    LIMIT,
    Gate,
    GateWhen,
    ask,
    at_rest,
    first_of,
    greedy,
    has_output,
    held_steps,
    running_thread,
    tokens_of,
    with_thread,
)

LONG = 400  # tokens: longer than any test looks


def open_engine_of(thread: EngineThread) -> Engine:
    assert thread.engine is not None
    return thread.engine


def test_a_completion_is_that_of_the_engine(client: httpx.Client, server: Serving) -> None:
    body = {"model": server.service.model_name, "prompt": "the moon", "max_tokens": 8, "temperature": 0}
    first = client.post("/v1/completions", json=body).json()
    again = client.post("/v1/completions", json=body).json()
    assert first["choices"][0]["text"] == again["choices"][0]["text"] != ""


def test_health(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert client.get("/ready").json()["status"] == "ready"


# -- what comes ----------------------------------------------------------------------------------------------------


@with_thread()
async def test_tokens_are_those_of_the_engine_alone(thread: EngineThread) -> None:
    prompts = ["the moon", "a page table", "the cook"]
    answers = [await thread.submit(ask(prompt, 12)) for prompt in prompts]
    streamed = await asyncio.gather(*map(tokens_of, answers))
    alone = await thread.call(lambda engine: list(engine.generate(prompts, greedy(12))))
    assert streamed == [list(each.token_ids) for each in sorted(alone, key=lambda each: each.index)]


@with_thread()
async def test_all_choices_end(thread: EngineThread) -> None:
    answer = await thread.submit(Ask("the moon", greedy(5, n=3)))
    done = await answer.completions()
    assert [each.choice for each in done] == [0, 1, 2]
    assert {each.finish_reason for each in done} == {FinishReason.LENGTH}
    assert answer.prompt_tokens == done[0].prompt_tokens


@with_thread()
async def test_who_reads_late_misses_nothing(thread: EngineThread) -> None:
    answer = await thread.submit(ask(max_tokens=20))
    await at_rest(thread)
    assert len(await tokens_of(answer)) == 20


@with_thread()
async def test_what_a_call_raises_is_the_caller_s(thread: EngineThread) -> None:
    def fail(engine: Engine) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await thread.call(fail)
    assert thread.health.is_ready


@with_thread()
async def test_labels_are_there_while_a_request_runs(thread: EngineThread) -> None:
    async with await thread.submit(ask(max_tokens=LONG, label="cmpl-1", session="s")) as answer:
        await first_of(answer)
        assert answer.request is not None
        assert await thread.call(lambda engine: dict(thread.labels)) == {answer.request.id: ("cmpl-1", "s")}
    await at_rest(thread)  # and none is left


# -- refusals ------------------------------------------------------------------------------------------------------


@with_thread()
async def test_a_request_that_can_never_run_is_refused(thread: EngineThread) -> None:
    with pytest.raises(RequestError, match="at least one"):
        await thread.submit(Ask([], greedy(1)))
    with pytest.raises(RequestError, match="vocabulary"):
        await thread.submit(Ask([1 << 20], greedy(1)))
    assert await thread.submit(ask())


@with_thread(max_waiting=3, max_running=1)
async def test_a_surplus_is_refused_although_the_engine_is_busy(thread: EngineThread) -> None:
    gate = Gate()
    thread.before_turn = gate
    await gate.reached()
    waiting = [asyncio.create_task(thread.submit(ask())) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="3 requests are waiting") as caught:
        await thread.submit(ask())
    assert caught.value.retry_after >= 1
    waiting[0].cancel()  # its place is free at once
    await asyncio.gather(waiting[0], return_exceptions=True)
    waiting.append(asyncio.create_task(thread.submit(ask())))
    await asyncio.sleep(0)
    assert not waiting[-1].done()
    gate.open()
    for task in waiting[1:]:
        assert len(await (await task).completions()) == 1


@with_thread(max_waiting=2, max_running=1)
async def test_no_place_is_lost_or_won_over_time(thread: EngineThread) -> None:
    """The count on the event loop's side and the engine's own agree, whatever ends how."""
    for _ in range(5):
        with held_steps(open_engine_of(thread), has_output):
            running = await thread.submit(ask(max_tokens=LONG))
            await first_of(running)  # the engine has taken it from its queue
            while (await thread.call(lambda engine: engine.num_waiting)) or thread.num_waiting:
                await asyncio.sleep(0.001)
            queued = [await thread.submit(ask()) for _ in range(2)]
            with pytest.raises(QueueFull):
                await thread.submit(ask())
            running.cancel()
        for answer in queued:
            await answer.completions()
        await at_rest(thread)


# -- leaving -------------------------------------------------------------------------------------------------------


@with_thread()
async def test_what_is_cancelled_in_the_inbox_never_reaches_the_engine(thread: EngineThread) -> None:
    gate, begun = Gate(), Counter[str]()
    assert thread.engine is not None
    submit = thread.engine.submit

    def counting(prompt: Any, *arguments: Any, **more: Any) -> Any:
        begun[prompt] += 1
        return submit(prompt, *arguments, **more)

    thread.engine.submit = counting  # type: ignore[method-assign]
    thread.before_turn = gate
    await gate.reached()
    tasks = {prompt: asyncio.create_task(thread.submit(ask(prompt))) for prompt in ("stays", "leaves")}
    await asyncio.sleep(0)
    tasks["leaves"].cancel()
    await asyncio.wait([tasks["leaves"]])
    gate.open()
    await (await tasks["stays"]).completions()
    assert begun == {"stays": 1}


@with_thread(max_running=1)
async def test_leaving_the_context_cancels(thread: EngineThread) -> None:
    with held_steps(open_engine_of(thread), has_output):
        async with await thread.submit(ask(max_tokens=LONG)) as running, await thread.submit(ask()) as queued:
            await first_of(running)
    await at_rest(thread)
    for answer in (running, queued):
        events = [event async for batch in answer.events() for event in batch]
        assert events[-1].finish_reason is FinishReason.CANCELLED
    statistics = await thread.call(lambda engine: engine.statistics())
    assert statistics.generated_tokens < LONG


@with_thread()
async def test_who_waits_for_completions_and_is_cancelled_cancels(thread: EngineThread) -> None:
    with held_steps(open_engine_of(thread), has_output):
        answer = await thread.submit(ask(max_tokens=LONG))
        task = asyncio.create_task(answer.completions())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await at_rest(thread)
    assert answer.is_cancelled


@with_thread()
async def test_cancelling_what_has_ended_does_nothing(thread: EngineThread) -> None:
    answer = await thread.submit(ask())
    done = await answer.completions()
    answer.cancel()
    answer.cancel()
    assert not answer.is_cancelled
    assert done[0].finish_reason is FinishReason.LENGTH


# -- time ----------------------------------------------------------------------------------------------------------


@with_thread(max_seconds=LIMIT)
async def test_a_request_has_a_time_that_it_may_take(thread: EngineThread) -> None:
    gate = GateWhen(lambda engine: any(branch.output for branch in engine.branches()))
    thread.before_turn = gate
    answer = await thread.submit(ask(max_tokens=3))
    assert answer.limit is not None
    assert 0 < answer.limit.when() - asyncio.get_running_loop().time() <= LIMIT
    await gate.reached()
    assert not answer.limit.cancelled()  # control
    gate.open()
    await answer.completions()
    while not answer.limit.cancelled():  # the loop hears of the end a little later than who waits for it
        await asyncio.sleep(0)


@with_thread(max_running=1)
async def test_what_takes_too_long_ends_with_what_there_is(thread: EngineThread) -> None:
    gate = GateWhen(lambda engine: any(len(branch.output) == 3 for branch in engine.branches()))
    thread.before_turn = gate
    answer = await thread.submit(ask(max_tokens=LONG))
    await gate.reached()
    thread._expire(answer)
    gate.open()
    done = (await answer.completions())[0]
    assert done.finish_reason is FinishReason.LENGTH
    assert len(done.token_ids) == 3
    short = (await (await thread.submit(ask(max_tokens=3))).completions())[0]
    assert len(short.token_ids) == 3  # control


@with_thread(max_running=1)
async def test_what_never_began_in_its_time_fails(thread: EngineThread) -> None:
    gate = GateWhen(lambda engine: engine.num_waiting and any(branch.output for branch in engine.branches()))
    thread.before_turn = gate
    running, queued = [await thread.submit(ask(max_tokens=LONG)) for _ in range(2)]
    await first_of(running)
    await gate.reached()
    for answer in (running, queued):
        thread._expire(answer)
    gate.open()
    never_began = (await queued.completions())[0]
    assert never_began.finish_reason is FinishReason.ERROR
    assert "too long" in never_began.error
    assert (await running.completions())[0].finish_reason is FinishReason.LENGTH


@with_thread()
async def test_it_ends_in_time_even_if_the_engine_does_not_answer(thread: EngineThread) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_thread, "_BUSY_SECONDS", 0.1)
        thread.before_turn = gate = GateWhen(has_output)
        answer = await thread.submit(ask(max_tokens=LONG))
        await gate.reached()
        thread._max_seconds = 0.1  # not before: a slow machine does not take long to take a request
        thread._expire(answer)
        with pytest.raises(EngineGone, match="does not answer"):
            await answer.completions()
        with pytest.raises(EngineGone, match="did not take"):
            await thread.submit(ask())
        gate.open()


@with_thread()
async def test_a_stall_shows_and_passes(thread: EngineThread) -> None:
    assert thread.health.is_ready
    answer = await thread.submit(ask(max_tokens=30))
    gate = Gate()
    thread.before_turn = gate
    await gate.reached()
    thread._side.heartbeat -= 2 * thread._stall_seconds
    assert (thread.health.condition, thread.health.is_alive) == (Condition.STALLED, True)
    with pytest.raises(EngineGone, match="stalled") as caught:
        await thread.submit(ask())
    assert (caught.value.status, caught.value.retry_after) == (503, 10)
    thread._side.heartbeat -= 5 * thread._stall_seconds
    assert (thread.health.condition, thread.health.is_alive) == (Condition.HUNG, False)
    gate.open()
    assert len((await answer.completions())[0].token_ids) == 30
    while not thread.health.is_ready:
        await asyncio.sleep(0.01)
    await (await thread.submit(ask())).completions()


@with_thread()
async def test_an_idle_engine_gives_signs_of_life_and_does_nearly_nothing(thread: EngineThread) -> None:
    turns: list[float] = []  # when each began
    thread.before_turn = lambda engine: turns.append(thread._side.heartbeat)
    while len(turns) < 6:
        await asyncio.sleep(0.1)
    assert sorted(set(turns)) == turns
    assert min(later - earlier for earlier, later in pairwise(turns)) > 0.4
    assert thread.health.is_ready


@with_thread()
async def test_time_passes_while_nothing_runs(thread: EngineThread) -> None:
    """What a client said must go after a while goes without any request."""
    clock = VirtualClock()
    await thread.call(lambda engine: setattr(engine.cache.retention, "_clock", clock))
    retain = (Retention(ttl=60.0),)
    await (await thread.submit(ask("the moon changes its shape", retain=retain))).completions()
    assert await thread.call(lambda engine: engine.cache.pool.counts().cached) > 0
    clock.now += 61.0
    while await thread.call(lambda engine: engine.cache.index.num_entries):
        await asyncio.sleep(0.05)


# -- snapshots -----------------------------------------------------------------------------------------------------


@with_thread()
async def test_a_snapshot_is_fresh(thread: EngineThread) -> None:
    before = await thread.snapshot(max_age=600)
    await (await thread.submit(ask(max_tokens=5))).completions()
    assert await thread.snapshot(max_age=600) is before  # young enough
    assert (await thread.snapshot(max_age=0)).engine.generated_tokens == 5


@with_thread()
async def test_a_busy_engine_shows_its_last_snapshot(thread: EngineThread) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_thread, "_BUSY_SECONDS", 0.05)
        before = await thread.snapshot()
        gate = Gate()
        thread.before_turn = gate
        await gate.reached()
        assert await asyncio.gather(thread.snapshot(max_age=0), thread.snapshot(max_age=0)) == [before, before]
        gate.open()
        patch.setattr(engine_thread, "_BUSY_SECONDS", 30)
        assert (await thread.snapshot(max_age=0)).at > before.at


# -- metrics -------------------------------------------------------------------------------------------------------


class Recorded(RequestMetrics):
    """What the thread tells, in its order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def came(self) -> None:
        self.calls.append(("came",))

    def refused(self, reason: str) -> None:
        self.calls.append(("refused", reason))

    def queued(self, seconds: float) -> None:
        assert seconds >= 0

    def first_token(self, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append(("first_token",))

    def next_token(self, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append(("next_token",))

    def ended(self, reason: FinishReason, prompt_tokens: int, generated_tokens: int, *seconds: float | None) -> None:
        self.calls.append(("ended", reason, prompt_tokens, generated_tokens))


def test_metrics_are_told_of_each_step_of_a_request(model: str) -> None:
    async def body() -> None:
        metrics = Recorded()
        async with running_thread(model, metrics=metrics, max_waiting=1) as thread:
            await (await thread.submit(Ask([5, 6, 7], greedy(3)))).completions()
            assert metrics.calls == [
                ("came",), ("first_token",), ("next_token",), ("next_token",), ("ended", FinishReason.LENGTH, 3, 3),
            ]  # fmt: skip
            metrics.calls.clear()
            with pytest.raises(RequestError):
                await thread.submit(Ask([], greedy(3)))
            with held_steps(open_engine_of(thread), has_output):
                async with await thread.submit(Ask([5], greedy(LONG))) as answer:
                    await first_of(answer)
            await at_rest(thread)
            gate = Gate()
            thread.before_turn = gate
            await gate.reached()
            waiting = asyncio.create_task(thread.submit(ask()))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await thread.submit(ask())
            gate.open()
            await (await waiting).completions()
        with pytest.raises(EngineGone):
            await thread.submit(ask())
        ends = [call for call in metrics.calls if call[0] in ("refused", "ended")]
        assert [call[1] for call in ends] == [
            "invalid", FinishReason.CANCELLED, "queue_full", FinishReason.LENGTH, "unavailable",
        ]  # fmt: skip

    asyncio.run(body())
