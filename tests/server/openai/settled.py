"""Waiting until a server has nothing to do any more, and holds nothing."""

import asyncio
import time
from collections.abc import Callable

from kvpager.engine.engine import Engine
from tests.server.serving import Serving

SECONDS = 60


def settle(server: Serving) -> None:
    _wait(lambda: not (server.engine.has_work or server.service.thread.num_open))


def assert_settled(server: Serving) -> None:
    """Nothing runs soon, and then no sequence holds a page."""
    settle(server)
    thread = server.service.thread
    assert thread._loop is not None

    def holds_nothing(engine: Engine) -> bool:
        engine.check()
        counts = engine.cache.pool.counts()
        return counts.used == counts.moving == 0

    _wait(lambda: asyncio.run_coroutine_threadsafe(thread.call(holds_nothing), thread._loop).result(SECONDS))


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "something still runs"
        time.sleep(0.01)
