"""/v1/kv/follow: the page that lies in a block now, and where it has been. Names it by the start of its content key."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from kvpager.engine.engine import Engine
from kvpager.memory.block import BlockState
from kvpager.prefix.hashing import block_key
from kvpager.server.errors import ApiError
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import require_operator
from kvpager.types import ContentKey

_DIGITS = 16  # of the key: enough to tell pages apart, too few to look one up by
_MAX_BLOCK = 2**31 - 1
router = APIRouter(dependencies=[Depends(require_operator)])


@router.get("/v1/kv/follow")
async def follow(
    service: Annotated[Service, Depends(service_of)],
    block: Annotated[int, Query(ge=0, le=_MAX_BLOCK, description="a block of the pool")],
) -> dict[str, Any]:
    found = await service.thread.call(lambda engine: _page_in(engine, block))
    stops = [] if found.key is None else service.page_events.journeys.of(found.key)
    return {
        "block": block,
        "state": found.state.name.lower(),
        "key": None if found.key is None else found.key.hex()[:_DIGITS],
        "also_in": found.also_in,
        "journey": [{"time": round(stop.time, 3), "tier": stop.tier, "what": stop.what} for stop in stops],
    }


@dataclass(frozen=True, slots=True)
class _Page:
    """``key``: None where the content can't be found by others. ``also_in``: tiers below that have a copy."""

    state: BlockState
    key: ContentKey | None
    also_in: list[str]


def _page_in(engine: Engine, block: int) -> _Page:
    cache = engine.cache
    if block >= cache.pool.num_blocks:
        raise ApiError(400, f"the pool has blocks 0 to {cache.pool.num_blocks - 1}", param="block")
    state = cache.pool.state(block)
    if not cache.pool.indexed[block]:
        return _Page(state, None, [])
    index = cache.index
    key = block_key(index.key(index.node_of_block(block)), index.group_of_block(block))
    tiers = () if cache.lower is None else cache.lower.migration.tiers
    return _Page(state, key, [tier.name for tier in tiers if tier.contains(key)])
