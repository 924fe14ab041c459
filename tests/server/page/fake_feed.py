"""The page over a memory that is made up: its static files, and the routes under /v1 that it asks.

python -m tests.server.page.fake_feed 8765 2000      the port, and how many blocks; then look at it
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from kvpager.config.server_options import ServerOptions
from kvpager.server import page_route
from kvpager.server.errors import ApiError, answer_error
from kvpager.server.guard import Guard
from kvpager.server.keys import ApiKeys
from tests.server.page.fake_memory import FakeMemory

_ANSWER = [
    "It",
    "waxes",
    "and",
    "wanes",
    "as",
    "the",
    "sun",
    "lights",
    "another",
    "part",
    "of",
    "it,",
    "night",
    "by",
    "night.",
]


@dataclass
class Feed:
    """``is_still``: every frame is the first one. ``status``: answered instead of a stream while it is not 200."""

    memory: FakeMemory
    is_still: bool = False
    status: int = 200
    reason: str = ""
    interval: float = 0.25
    whole_every: int = 40
    is_over: bool = False
    num_past: int = 120  # frames before anybody looks
    past: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory.now = time.time() - self.num_past / 4
        before = None
        for i in range(self.num_past):
            self.memory.step()
            self.past.append(json.dumps(self.memory.frame(None if i % self.whole_every == 0 else before)))
            before = self.memory.columns()

    async def events(self) -> AsyncIterator[str]:
        before, count = None, 0
        while self.status == 200 and not self.is_over:
            frame = self.memory.frame(before if count % self.whole_every else None)
            before, count = self.memory.columns(), count + 1
            yield f"event: frame\r\ndata: {json.dumps(frame)}\r\n\r\n"
            await asyncio.sleep(self.interval)
            self.memory.now += 0.0 if not self.is_still else self.interval
            if not self.is_still:
                self.memory.step(self.interval)


def create_app(feed: Feed) -> FastAPI:
    app = FastAPI()
    app.include_router(page_route.router)
    app.add_exception_handler(ApiError, answer_error)
    app.add_middleware(Guard, options=ServerOptions(), keys=ApiKeys())

    @app.get("/v1/kv/stream")
    async def stream() -> Response:
        if feed.status != 200:
            return JSONResponse({"error": {"message": feed.reason}}, feed.status)
        return StreamingResponse(feed.events(), media_type="text/event-stream")

    @app.get("/v1/kv/history")
    async def history() -> Response:
        return Response(f'{{"frames": [{",".join(feed.past)}]}}', media_type="application/json")

    @app.get("/v1/kv/tables")
    async def tables() -> Response:
        return JSONResponse(feed.memory.tables())

    @app.get("/v1/kv/follow")
    async def follow(block: int) -> Response:
        now = feed.memory.now
        steps = [("device", "written"), ("host", "copied"), ("device", "came back")]
        journey = [{"time": now - 30 + 8 * i, "tier": tier, "what": what} for i, (tier, what) in enumerate(steps)]
        where = {"block": block, "state": "used", "key": f"{block:016x}", "also_in": ["host"]}
        return JSONResponse(where | {"journey": journey})

    @app.get("/v1/kv/trace")
    async def trace() -> Response:
        return JSONResponse({"traceEvents": [{"name": "demote", "ph": "X", "ts": 0, "dur": 5, "pid": 1, "tid": 1}]})

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"data": [{"id": "fake", "max_model_len": 8192}]})

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        async def pieces() -> AsyncIterator[str]:
            for word in _ANSWER:
                yield f"data: {json.dumps({'choices': [{'delta': {'content': word + ' '}}]})}\n\n"
                await asyncio.sleep(0.03)
            usage = {"prompt_tokens": 212, "completion_tokens": 17, "prompt_tokens_details": {"cached_tokens": 192}}
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    return app


@contextmanager
def serving_feed(feed: Feed, port: int = 0) -> Iterator[str]:
    """The address, while it is served on a thread of this process."""
    app = create_app(feed)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="fake-feed", daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the feed did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        feed.is_over = server.should_exit = True
        thread.join(10)


if __name__ == "__main__":
    port, blocks = int(sys.argv[1]), int(sys.argv[2])
    uvicorn.run(create_app(Feed(FakeMemory(blocks))), host="127.0.0.1", port=port, log_level="warning")
