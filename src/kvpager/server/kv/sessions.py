"""/v1/kv/sessions: conversations kept by name in the disk tier's folder, so that a restart can go on with them.

What is kept are tokens and messages. The pages are found by content, as far as the disk has them; restoring begins to
bring them up. A name is a tenant's own, and never part of a path.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from kvpager.cache.sequence import token_array
from kvpager.engine.engine import Engine
from kvpager.errors import ConfigError, WrongContent
from kvpager.prefix.hashing import Scope
from kvpager.server.errors import ApiError
from kvpager.server.kv.prompts import PromptFields, tokens_of
from kvpager.server.kv.session_book import MOST_EACH, SessionBook, TooMany
from kvpager.server.openai.fields import STRICT
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import scope_for, tenant_of
from kvpager.tiers.disk.session_files import Session

router = APIRouter(route_class=StrictRoute)
_Service = Annotated[Service, Depends(service_of)]
_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_Name = Annotated[str, Field(pattern=_NAME)]


class SaveRequest(PromptFields):
    name: _Name


class RestoreRequest(BaseModel):
    model_config = STRICT

    name: _Name


@router.post("/v1/kv/sessions")
async def save(request: Request, body: SaveRequest, service: _Service) -> dict[str, Any]:
    """A session of that name is replaced."""
    tenant, book = tenant_of(request), _book(request, service)
    tokens = await tokens_of(service, body)
    messages = None if body.messages is None else [message.for_template() for message in body.messages]
    session = Session(token_array(tokens), scope_for(tenant, body.cache_salt), json.dumps({"messages": messages}))
    try:
        entry = await _off_loop(service, lambda: book.save(tenant, body.name, session))
    except TooMany:
        raise ApiError(
            409, f"you have {MOST_EACH} sessions, which is as many as may be; delete one", param="name"
        ) from None
    return {"name": body.name, **asdict(entry)}


@router.get("/v1/kv/sessions")
async def sessions(request: Request, service: _Service) -> dict[str, Any]:
    tenant, book = tenant_of(request), _book(request, service)
    entries = await _off_loop(service, lambda: book.entries(tenant))
    return {"data": [{"name": name, **asdict(entry)} for name, entry in sorted(entries.items())]}


@router.post("/v1/kv/sessions/restore")
async def restore(request: Request, body: RestoreRequest, service: _Service) -> dict[str, Any]:
    """``on_device``: tokens that need not be computed if the next request comes now; ``is_loading``: more will come."""
    tenant, book = tenant_of(request), _book(request, service)
    found = await _off_loop(service, lambda: book.load(tenant, body.name))
    if found is None:
        raise _absent()
    session = found
    scope = replace(session.scope, tenant=tenant.name)
    told = {"name": body.name, "messages": _messages(session), "tokens": session.tokens.tolist()}
    return told | await service.thread.call(lambda engine: _warm(engine, session, scope))


@router.delete("/v1/kv/sessions")
async def delete(request: Request, service: _Service, name: Annotated[str, Query(pattern=_NAME)]) -> dict[str, Any]:
    tenant, book = tenant_of(request), _book(request, service)
    if not await _off_loop(service, lambda: book.remove(tenant, name)):
        raise _absent()
    return {"name": name, "deleted": True}


def _warm(engine: Engine, session: Session, scope: Scope) -> dict[str, Any]:
    if not len(session.tokens) or len(session.tokens) > engine.max_request_tokens:
        return {"on_device": 0, "is_loading": False}
    is_loading = engine.prefetch(session.tokens, scope=scope)
    return {"on_device": engine.cache.lookup(session.tokens, scope).num_tokens, "is_loading": is_loading}


def _messages(session: Session) -> Any:
    try:
        return json.loads(session.note)["messages"]
    except (ValueError, KeyError, TypeError):  # kept by somebody else
        return None


def _book(request: Request, service: Service) -> SessionBook:
    files = service.engine.cache.sessions
    if files is None:
        raise ApiError(
            400, "sessions need a tier that outlives the process: start the server with --tier disk=FOLDER,size=SIZE",
            code="no_disk_tier",
        )  # fmt: skip
    state = request.app.state
    if not hasattr(state, "session_book"):
        state.session_book = SessionBook(files)
    book: SessionBook = state.session_book
    return book


async def _off_loop(service: Service, function: Callable[[], _T]) -> _T:
    """Files are waited for beside the event loop, and beside the engine. Paths stay here."""
    try:
        return await service.off_loop.run(function)
    except WrongContent:
        raise ApiError(409, "this session is damaged; save it again", code="session_damaged") from None
    except ConfigError as error:
        _log.error("sessions can't be read or written: %s", error)  # says the folder and what the system said
        raise ApiError(
            503, "sessions can't be read or written now; the server's log says more", retry_after=10
        ) from None


def _absent() -> ApiError:
    return ApiError(404, "you have no session of that name", param="name", code="session_not_found")
