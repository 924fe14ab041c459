"""The feed by itself: over a thread and an engine that are none, so that everything happens when the test says so."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import numpy as np
import pytest

from kvpager.metrics.block_view import BlockView
from kvpager.metrics.frame_taker import FrameTaker
from kvpager.metrics.frames import Frame, read_frame
from kvpager.server.answer import EngineGone
from kvpager.server.engine_thread import EngineThread
from kvpager.server.errors import ApiError
from kvpager.server.health import Condition, Health
from kvpager.server.kv.frame_feed import INTERVAL, MAX_BYTES_PER_SECOND, MAX_WATCHERS, WHOLE_EVERY, FrameFeed


class Thread:
    """Answers at once, unless it is held."""

    def __init__(self) -> None:
        self.health = Health(Condition.READY)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(self, function: Callable[[object], Any]) -> Any:
        await self.may_answer.wait()
        return function(self)


class Taker:
    """Frames in which one block after the other is used."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._seq = 0

    def look(self, engine: object) -> int:
        self._seq += 1
        return self._seq

    def frame(self, seq: int) -> Frame:
        state = (np.arange(self._num_blocks) < seq).astype(np.uint8)
        blocks = BlockView(state, state.astype(np.uint16), state, state)
        return Frame(seq, float(seq), {"seq": seq, "time": float(seq)}, blocks)


class Clock:
    """``passes``: seconds with each look at it, so that a frame is due whenever it is asked for."""

    def __init__(self, passes: float = 1.0) -> None:
        self.now, self.passes = 0.0, passes

    def __call__(self) -> float:
        self.now += self.passes
        return self.now


def feed_over(thread: Thread, clock: Clock, num_blocks: int = 100) -> FrameFeed:
    return FrameFeed(cast(EngineThread, thread), cast(FrameTaker, Taker(num_blocks)), clock)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def data(event: bytes) -> str:
    assert event.startswith(b"event: frame\r\ndata: ")
    assert event.endswith(b"\r\n\r\n")
    return event.split(b"data: ")[1].decode().strip()


def is_whole(event: bytes) -> bool:
    return b'"full":true' in event


def test_one_frame_for_all_who_wait() -> None:
    async def test() -> None:
        feed = feed_over(Thread(), Clock())
        published = await asyncio.gather(*(feed.after(0) for _ in range(5)))
        assert feed.num_taken == 1
        assert {id(each) for each in published} == {id(published[0])}
        await feed.after(1)
        assert feed.num_taken == 2

    run(test)


def test_a_frame_that_is_young_enough_is_given_again() -> None:
    async def test() -> None:
        clock = Clock()
        feed = feed_over(Thread(), clock)
        first = await feed.now()
        clock.passes = 0
        assert await feed.now() is first
        clock.now += INTERVAL
        assert await feed.now() is not first

    run(test)


def test_whoever_was_slow_gets_the_newest_whole_and_the_others_changes() -> None:
    async def test() -> None:
        feed = feed_over(Thread(), Clock(passes=0.3))
        slow, quick = feed.events(), feed.events()
        first = data(await anext(slow))
        assert is_whole(first.encode())
        frame = read_frame(data(await anext(quick)))
        for _ in range(3):
            event = await anext(quick)
            assert not is_whole(event)
            frame = read_frame(data(event), frame)
        late = await anext(slow)
        assert is_whole(late)
        assert read_frame(data(late)).blocks.is_same(frame.blocks)
        after = await anext(slow)
        assert not is_whole(after)  # it has caught up
        await slow.aclose()
        await quick.aclose()

    run(test)


def test_now_and_then_a_frame_is_whole_and_the_past_can_be_read() -> None:
    async def test() -> None:
        feed = feed_over(Thread(), Clock(passes=WHOLE_EVERY / 20))
        events = feed.events()
        kinds = [is_whole(await anext(events)) for _ in range(40)]
        assert kinds[0]
        assert 2 <= sum(kinds) < 20
        assert [frame.seq for frame in feed.history.frames(0)] == list(range(1, 41))
        await events.aclose()

    run(test)


def test_large_frames_come_more_rarely() -> None:
    async def test() -> None:
        seconds = []
        for num_blocks in (10, 3_000_000):
            feed = feed_over(Thread(), Clock(passes=0), num_blocks)
            published = await feed.after(0)
            seconds.append(feed._due)
            assert published.num_bytes / feed._due <= MAX_BYTES_PER_SECOND * 1.001
        assert seconds[0] == INTERVAL
        assert seconds[1] > 5

    run(test)


def test_one_who_leaves_does_not_take_the_frame_from_the_others() -> None:
    async def test() -> None:
        thread = Thread()
        thread.may_answer.clear()
        feed = feed_over(thread, Clock())
        leaving, staying = asyncio.create_task(feed.after(0)), asyncio.create_task(feed.after(0))
        await asyncio.sleep(0)
        leaving.cancel()
        thread.may_answer.set()
        assert (await staying).frame.seq == 1
        assert leaving.cancelled()

    run(test)


@pytest.mark.parametrize("condition", [Condition.FAILED, Condition.DRAINING, Condition.STOPPED])
def test_an_engine_that_is_gone_ends_it_for_all(condition: Condition) -> None:
    async def test() -> None:
        thread = Thread()
        feed = feed_over(thread, Clock())
        events = feed.events()
        await anext(events)
        thread.health = Health(condition)
        with pytest.raises(EngineGone, match=condition.value):
            await anext(events)
        thread.health = Health(Condition.READY)
        assert (await feed.now()).frame.seq == 2  # and whoever comes later is served, if it is back

    run(test)


def test_places_are_given_back() -> None:
    async def test() -> None:
        feed = feed_over(Thread(), Clock())
        for _ in range(2 * MAX_WATCHERS):
            with feed.watching():
                assert feed.num_watchers == 1
        places = [feed.watching() for _ in range(MAX_WATCHERS)]
        for place in places:
            place.__enter__()
        with pytest.raises(ApiError, match="watch the memory already"):
            feed.check_room()
        places[0].__exit__(None, None, None)
        feed.check_room()

    run(test)
