"""/v1/kv/retain: what of a tenant's pages stays, goes first or must be gone, by tokens that are there or will come.

A tenant names its own pages only, and pins no more than its part of what may be pinned. See docs/retention.md.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from kvpager.cache.retention_terms import Retained, Retention, Verdict
from kvpager.engine.engine import Engine
from kvpager.errors import ConfigError
from kvpager.server.errors import ApiError
from kvpager.server.kv.held_retentions import MOST_EACH, HeldRetentions
from kvpager.server.kv.prompts import PromptFields, tokens_of
from kvpager.server.openai.encoding import Tokens
from kvpager.server.openai.fields import STRICT
from kvpager.server.openai.limits import MAX_IDS, Finite
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import Tenant, check_priority, require_operator, scope_for, tenant_of

router = APIRouter(route_class=StrictRoute)
_Service = Annotated[Service, Depends(service_of)]
_USUAL_PRIORITY = 50
_PARTS = 4  # a tenant may have so small a part of what all may retain; an operator all of it
_MOST_SECONDS = 10 * 365 * 86400.0

_Position = Annotated[int, Field(ge=0, le=MAX_IDS)]
_Name = Annotated[str, Query(alias="id", min_length=1, max_length=64)]


class RetainRequest(PromptFields):
    """What is wanted of the pages of tokens ``start`` to ``stop - 1``."""

    start: _Position | None = None
    stop: Annotated[int, Field(ge=1, le=MAX_IDS)] | None = None
    pin: bool | None = None
    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    seconds: Annotated[Finite, Field(gt=0, le=_MOST_SECONDS)] | None = None
    ttl: Annotated[Finite, Field(ge=0, le=_MOST_SECONDS)] | None = None


class QuotaRequest(BaseModel):
    """``capacity``: bytes, or a text such as "2GiB" or "10%" of each tier; null: no limit."""

    model_config = STRICT

    tenant: Annotated[str, Field(max_length=64)]
    capacity: Annotated[int, Field(ge=0, le=2**60)] | Annotated[str, Field(max_length=32)] | None = None
    weight: Annotated[Finite, Field(gt=0, le=1e6)] | None = None


@router.post("/v1/kv/retain")
async def retain(request: Request, body: RetainRequest, service: _Service) -> dict[str, Any]:
    tenant, wish = tenant_of(request), _wish(body)
    check_priority(tenant, wish.priority or 0, highest=_USUAL_PRIORITY)
    tokens = await tokens_of(service, body)
    held = held_of(request)
    return await service.thread.call(lambda engine: _retain(engine, held, tenant, body.cache_salt, tokens, wish))


@router.get("/v1/kv/retain")
async def retentions(request: Request, service: _Service) -> dict[str, Any]:
    tenant, held = tenant_of(request), held_of(request)
    found = await service.thread.call(lambda engine: held.of(engine, tenant.name))
    return {"data": [_told(answer, name) for name, answer in found.items()]}


@router.delete("/v1/kv/retain")
async def release(request: Request, service: _Service, name: _Name) -> dict[str, Any]:
    tenant, held = tenant_of(request), held_of(request)

    def let_go(engine: Engine) -> bool:
        found = held.take(tenant.name, name)
        return found is not None and engine.cache.retention.release(found.number)

    if not await service.thread.call(let_go):
        raise ApiError(404, "there is no such retention; it may be over", param="id")
    return {"id": name, "released": True}


@router.post("/v1/kv/quota")
async def quota(request: Request, body: QuotaRequest, service: _Service) -> dict[str, Any]:
    """For operators: what a tenant may hold on each tier."""
    require_operator(request)
    weight = 1.0 if body.weight is None else body.weight
    try:
        answer = await service.thread.call(
            lambda engine: engine.cache.retention.set_quota(body.tenant, body.capacity, weight=weight)
        )
    except ConfigError:
        raise ApiError(400, "capacity: give bytes, or a text such as '2GiB' or '10%'", param="capacity") from None
    return {"verdict": answer.verdict.value, "reason": answer.reason}


def held_of(request: Request) -> HeldRetentions:
    held: HeldRetentions = request.app.state.retentions
    return held


def _wish(body: RetainRequest) -> Retention:
    try:
        return Retention(body.start or 0, body.stop, body.pin is True, body.priority, body.seconds, body.ttl)
    except ConfigError as error:  # says numbers only
        raise ApiError(400, str(error)) from None


def _retain(
    engine: Engine, held: HeldRetentions, tenant: Tenant, cache_salt: str | None, tokens: Tokens, wish: Retention
) -> dict[str, Any]:
    if len(held.of(engine, tenant.name)) >= MOST_EACH:
        return _refused(f"you have {MOST_EACH} retentions, which is as many as may be; release one")
    retention, part = engine.cache.retention, 1 if tenant.is_operator else _PARTS
    pins, names = _num_pins(engine, tokens, wish), _num_names(engine, tokens, wish)
    if pins and held.num_pins(tenant.name) + pins > (most := retention.max_pinned // part):
        return _refused(f"these would be {pins} more pinned blocks, and you may pin {most} together")
    if held.num_names(tenant.name) + names > (most := retention.max_size // part):
        return _refused(f"these would name pages {names} times more, and you may {most} times together")
    answer = retention.retain(
        tokens,
        wish.start,
        wish.stop,
        scope=scope_for(tenant, cache_salt),
        pin=wish.pin,
        priority=wish.priority,
        seconds=wish.seconds,
        ttl=wish.ttl,
    )
    return _told(answer, None if answer.id is None else held.add(tenant.name, answer.id, pins, names))


def _num_pins(engine: Engine, tokens: Tokens, wish: Retention) -> int:
    """A pin holds the pages before its range too."""
    if not wish.pin:
        return 0
    stop = len(tokens) if wish.stop is None else min(wish.stop, len(tokens))
    return engine.layout.num_pages(stop) * engine.layout.num_groups


def _num_names(engine: Engine, tokens: Tokens, wish: Retention) -> int:
    """How often pages are named: pinned ones by the pin, those of the range by priority or time to live."""
    size, groups = engine.layout.page_size, engine.layout.num_groups
    stop = engine.layout.num_pages(len(tokens) if wish.stop is None else min(wish.stop, len(tokens)))
    is_ranked = wish.priority is not None or wish.ttl is not None
    return groups * (is_ranked * max(0, stop - wish.start // size) + wish.pin * stop)


def _told(answer: Retained, name: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "verdict": answer.verdict.value,
        "reason": answer.reason,
        "start": answer.start,
        "stop": answer.stop,
        "pages": answer.pages,
    }


def _refused(reason: str) -> dict[str, Any]:
    return _told(Retained(None, Verdict.REFUSED, reason), None)
