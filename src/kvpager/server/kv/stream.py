"""/v1/kv/stream: frames as they come, as server-sent events. The first is whole, the others say what changed."""

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from kvpager.server.engine_thread import EngineGone
from kvpager.server.errors import ApiError, as_api_error
from kvpager.server.kv.frame_feed import FrameFeed, feed_of
from kvpager.server.tenant import require_operator

_SEND_SECONDS = 30.0  # that a watcher may take to read a frame; its place is free again then
router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/stream", response_class=EventSourceResponse)
async def stream(feed: Annotated[FrameFeed, Depends(feed_of)]) -> EventSourceResponse:
    feed.check_room()
    return _Watching(_events(feed), send_timeout=_SEND_SECONDS, ping=15)


async def _events(feed: FrameFeed) -> AsyncIterator[bytes]:
    """Ends when the engine is gone, with an event that says so."""
    try:
        with feed.watching():
            async for event in feed.events():
                yield event
    except (EngineGone, ApiError) as error:
        told = as_api_error(error) if isinstance(error, EngineGone) else error
        yield b"event: gone\r\ndata: " + json.dumps(told.body()).encode() + b"\r\n\r\n"


class _Watching(EventSourceResponse):
    """A watcher that stops reading is let go without an error of ours."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            return
