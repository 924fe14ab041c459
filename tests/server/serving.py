"""A real server over a tiny model for tests: uvicorn on a thread of this process, on a free port of 127.0.0.1.

with serving(model, num_blocks=64) as server:
    httpx.get(server.url + "/health")
    server.thread.call / server.engine ...
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from kvpager.config import Options
from kvpager.config.server_options import ServerOptions
from kvpager.engine.engine import Engine
from kvpager.server.app import create_app
from kvpager.server.service import Service


@dataclass(slots=True)
class Serving:
    url: str
    app: FastAPI

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def engine(self) -> Engine:
        """It runs on a thread of its own: look, don't touch, or use ``service.thread.call``."""
        return self.service.engine


@contextmanager
def serving(
    model: str,
    *,
    num_blocks: int = 256,
    server: ServerOptions | None = None,
    open_engine: Callable[[], Engine] | None = None,
    **options: object,
) -> Iterator[Serving]:
    """``model``: a folder (the fixture ``model`` of tests/server/conftest.py). ``options`` of the engine by keyword."""

    def open_usual() -> Engine:
        return Engine(model, options=Options(model=model, page_size=4, **options), num_blocks=num_blocks)  # type: ignore[arg-type]

    app = create_app(open_engine or open_usual, server or ServerOptions(port=0, stall_seconds=600))
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on"))
    thread = threading.Thread(target=running.run, name="test-server", daemon=True)
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        port = running.servers[0].sockets[0].getsockname()[1]
        yield Serving(f"http://127.0.0.1:{port}", app)
    finally:
        running.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
