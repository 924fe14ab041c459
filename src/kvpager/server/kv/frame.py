"""/v1/kv/frame: the memory now, as one whole frame (metrics/frames.py)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from kvpager.server.kv.frame_feed import FrameFeed, feed_of
from kvpager.server.tenant import require_operator

router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/frame")
async def frame(feed: Annotated[FrameFeed, Depends(feed_of)]) -> Response:
    published = await feed.now()
    return Response(await published.whole(), media_type="application/json")
