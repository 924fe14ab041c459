"""/v1/kv/history: frames of the past that somebody watched, thinned, for scrubbing back in time."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from kvpager.metrics.frame_history import FrameHistory
from kvpager.server.kv.frame_feed import FrameFeed, feed_of
from kvpager.server.tenant import require_operator

MAX_SECONDS = 24 * 3600.0
_USUAL_SECONDS = 120.0
_MOST_FRAMES = 240
_MAX_BYTES = 16 << 20  # of one answer; larger ones are thinned further
router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/history")
async def history(
    feed: Annotated[FrameFeed, Depends(feed_of)],
    seconds: Annotated[float, Query(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] = _USUAL_SECONDS,
    frames: Annotated[int, Query(ge=1, le=_MOST_FRAMES, description="at most so many")] = _MOST_FRAMES,
) -> Response:
    async with feed.looking_back:
        body = await asyncio.to_thread(_past, feed.history, time.time() - seconds, frames)
    return Response(body, media_type="application/json")


def _past(past: FrameHistory, since: float, most: int) -> bytes:
    while True:
        texts = _texts(past, since, most)
        if texts is not None:
            return b'{"frames":[' + b",".join(texts) + b"]}"
        most = max(1, most // 2)


def _texts(past: FrameHistory, since: float, most: int) -> list[bytes] | None:
    """None where they are too large together; one frame never is."""
    texts: list[bytes] = []
    size, before = 0, None
    for frame in past.thinned(since, most):
        text = frame.encode(before).text.encode()
        before = frame
        texts.append(text)
        size += len(text)
        if size > _MAX_BYTES and most > 1:
            return None
    return texts
