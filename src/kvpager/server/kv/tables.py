"""/v1/kv/tables: the page tables of the running requests, as rows."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from kvpager.metrics.page_tables import TablesCopy, copy_tables, rows_of
from kvpager.server.kv.frame_feed import FrameFeed, feed_of
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import require_operator

MAX_PAGES = 65536  # some 5 MB of JSON
_USUAL_PAGES = 8192
router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/tables")
async def tables(
    service: Annotated[Service, Depends(service_of)],
    feed: Annotated[FrameFeed, Depends(feed_of)],
    owner: Annotated[int | None, Query(ge=1, le=65535, description="only of this owner of the frames")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGES, description="pages in all, shared out evenly")] = _USUAL_PAGES,
) -> Response:
    copied = await service.thread.call(lambda engine: copy_tables(engine, feed.taker.named(engine), limit, owner))
    return JSONResponse(await asyncio.to_thread(_shown, copied))


def _shown(copied: TablesCopy) -> dict[str, Any]:
    return {"tables": rows_of(copied), "page_size": copied.page_size, "left_out": copied.left_out}
