"""/v1/kv/trace: what happened while somebody watched, as a Chrome trace that Perfetto opens."""

import asyncio
import json
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from kvpager.metrics.chrome_trace import chrome_trace
from kvpager.metrics.frame_history import FrameHistory
from kvpager.server.kv.frame_feed import FrameFeed, feed_of
from kvpager.server.kv.history import MAX_SECONDS
from kvpager.server.tenant import require_operator

_USUAL_SECONDS = 600.0
router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/trace")
async def trace(
    feed: Annotated[FrameFeed, Depends(feed_of)],
    seconds: Annotated[float, Query(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] = _USUAL_SECONDS,
) -> Response:
    async with feed.looking_back:
        body = await asyncio.to_thread(_traced, feed.history, time.time() - seconds)
    headers = {"Content-Disposition": 'attachment; filename="kvpager-trace.json"'}
    return Response(body, media_type="application/json", headers=headers)


def _traced(past: FrameHistory, since: float) -> bytes:
    return json.dumps(chrome_trace(past.figures(since)), separators=(",", ":")).encode()
