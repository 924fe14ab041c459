"""Looks at the engine every few seconds for as long as the server runs, so that alerts fire though nobody watches."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import perf_counter

from kvpager.server.service import Service

_log = logging.getLogger(__name__)
_SECONDS = 2.0


@asynccontextmanager
async def watching(service: Service, seconds: float = _SECONDS) -> AsyncIterator[None]:
    """REQUIRES: the engine's thread was started."""
    task = asyncio.create_task(_watch(service, seconds), name="alerts")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _watch(service: Service, seconds: float) -> None:
    while True:
        snapshot = await service.thread.snapshot()
        try:
            service.alerts.update(snapshot, perf_counter())
        except Exception:  # what looks on must not take the server down, but whoever runs it has to know
            _log.exception("alerts can't be evaluated any more")
            return
        await asyncio.sleep(seconds)
