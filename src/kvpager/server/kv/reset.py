"""/v1/kv/reset: forgets what is cached, in the tiers that are named, for all tenants. Off unless the options allow it.

What runs goes on: its pages stay, and so do those that are being moved just then.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from kvpager.engine.engine import Engine
from kvpager.server.errors import ApiError
from kvpager.server.openai.fields import STRICT
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import require_operator

router = APIRouter(route_class=StrictRoute)
_DEVICE = "device"
_MOST_TIERS = 16


class ResetRequest(BaseModel):
    """``tiers``: names as in /v1/kv/info."""

    model_config = STRICT

    tiers: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=_MOST_TIERS)]


@router.post("/v1/kv/reset")
async def reset(
    request: Request, body: ResetRequest, service: Annotated[Service, Depends(service_of)]
) -> dict[str, Any]:
    require_operator(request)
    if not service.options.allow_reset:
        raise ApiError(403, "this server was not started with --allow-reset", code="reset_is_off")
    cleared = await service.thread.call(lambda engine: clear(engine, body.tiers))
    return {"cleared": [{"tier": name, "pages": pages} for name, pages in cleared.items()]}


def clear(engine: Engine, names: list[str]) -> dict[str, int]:
    """Pages dropped, by tier. Raises ApiError 400 for a name that is none, before anything is dropped.

    REQUIRES: the engine's thread, between two steps.
    """
    cache, groups = engine.cache, engine.layout.num_groups
    lower = {} if cache.lower is None else {tier.name: tier for tier in cache.lower.migration.tiers}
    known = [_DEVICE, *lower]
    if not set(names) <= set(known):
        raise ApiError(400, f"tiers: there are {', '.join(map(repr, known))} and no others", param="tiers")
    dropped = {}
    for name in known:
        if name in names:
            blocks = cache.clear_prefix() if name == _DEVICE else lower[name].clear()
            dropped[name] = blocks // groups
    return dropped
