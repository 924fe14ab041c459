"""Waiting until a server has nothing to do any more, and holds nothing."""

import time

from tests.server.serving import Serving

SECONDS = 20


def settle(server: Serving) -> None:
    end = time.monotonic() + SECONDS
    while server.engine.has_work or server.service.thread.num_open:
        assert time.monotonic() < end, "something still runs"
        time.sleep(0.01)


def assert_settled(server: Serving) -> None:
    """Nothing runs soon, and then no sequence holds a page."""
    settle(server)
    counts = server.engine.cache.pool.counts()
    assert (counts.used, counts.moving) == (0, 0)
    server.engine.check()
