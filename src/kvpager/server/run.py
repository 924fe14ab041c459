"""Runs the application: a socket, the engine, uvicorn, and the signals that end them.

    open the engine -> listen -> say what there is -> serve ... SIGTERM or Ctrl-C -> drain -> close

Nobody can connect until all is ready. While requests drain, connections are still accepted and told 503; a second
signal ends at once.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from kvpager.config import ServerOptions, reserved_variables
from kvpager.engine.engine import Engine
from kvpager.server.app import create_app
from kvpager.server.connection import Connection
from kvpager.server.engine_thread import EngineThread
from kvpager.server.keys import check_bind, load_keys
from kvpager.server.log_filter import hide_content
from kvpager.server.service import Service
from kvpager.server.start_block import Start, describe_start
from kvpager.server.status_line import status_line

_log = logging.getLogger(__name__)
_SWITCH_SECONDS = 0.0005  # that one thread computes while another wants to: each write to a socket may wait so long
_KEEP_ALIVE_SECONDS = 75  # of an idle connection: longer than the 60 s of usual proxies, so that these close first
_FLUSH_SECONDS = 5  # for the last bytes of answers once all have ended
_MAX_HEADER_BYTES = 64 << 10  # of a request whose headers do not end
_MAX_CONNECTIONS = 4096


def serve(
    open_engine: Callable[[], Engine], options: ServerOptions, bound: socket.socket, say: Callable[[Start], None]
) -> bool:
    """Serves until a signal ends it; whether all requests and the engine ended well. ``say``: is told once all is up.

    Raises ConfigError for an address that is open to all without a key, and what ``open_engine`` raises. REQUIRES: the
    main thread.
    """
    asks_for_keys = len(load_keys(options.api_keys, reserved_variables())) > 0
    check_bind(options, asks_for_keys)
    app = create_app(open_engine, options)
    hide_content()
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return asyncio.run(_serve(app, bound, asks_for_keys, say))
    finally:
        sys.setswitchinterval(before)


async def _serve(app: FastAPI, bound: socket.socket, asks_for_keys: bool, say: Callable[[Start], None]) -> bool:
    service: Service = app.state.service
    thread, options = service.thread, service.options
    async with app.router.lifespan_context(app):  # here rather than in uvicorn, which keeps errors to itself
        start = describe_start(
            service.engine,
            served_name=service.model_name,
            url=_url(options.host, bound.getsockname()[1]),
            has_page=options.page,
            asks_for_keys=asks_for_keys,
        )
        gc.collect()
        gc.freeze()  # model and libraries stay: a full collection would look through them, 140 ms between two tokens
        server = Server(_config(app), thread, options.drain_seconds, lambda: say(start))
        report = asyncio.create_task(_report(thread, options.status_seconds))
        try:
            await server.serve(sockets=[bound])
        finally:
            gc.unfreeze()
            report.cancel()
    return await thread.stop() and server.is_drained


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_FLUSH_SECONDS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        limit_concurrency=_max_connections(),
    )


class Server(uvicorn.Server):
    """uvicorn's, with an end of its own: the first signal drains, the second one kills."""

    def __init__(
        self, config: uvicorn.Config, thread: EngineThread, drain_seconds: float, started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.is_drained = False
        self._thread, self._drain_seconds, self._say_started = thread, drain_seconds, started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._is_told = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._say_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Runs between two instructions of the event loop's thread."""
        if self._is_told or self._loop is None:
            signal.signal(sig, signal.SIG_DFL)
            os.kill(os.getpid(), sig)
            return
        self._is_told = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        _log.info(
            "stopping: %d requests under way get %g s; another signal ends at once",
            self._thread.num_open,
            self._drain_seconds,
        )
        try:
            self.is_drained = await self._thread.drain(self._drain_seconds)
            if not self.is_drained:
                _log.warning("requests were ended that did not end in time")
        finally:
            self.should_exit = True


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Streams without an end, as of the memory page, are cut when the server stops: no error."""
    return "without completing response" not in record.getMessage()


async def _report(thread: EngineThread, seconds: float | None) -> None:
    before = await thread.snapshot()
    while seconds is not None:
        await asyncio.sleep(seconds)
        now = await thread.snapshot()
        if (line := status_line(before, now)) is not None:
            _log.info("%s", line)
        before = now


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _max_connections() -> int:
    """As many as leave files for the tiers. The soft limit on open files goes up to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(_MAX_CONNECTIONS, soft // 2))
