"""What goes wrong, as a client is told: {"error": {"message", "type", "param", "code"}} and a status, on every route.

Messages name the fault and the remedy. They never quote what was sent: a prompt must not come back through an error.
"""

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from kvpager.errors import ConfigError, KVPagerError, QueueFull, RequestError
from kvpager.server.answer import EngineGone

_log = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable",
}
_CLIENT_CLOSED = 499  # nginx's word for it; for the access log alone
_PHRASES = {404: "there is no such route here", 405: "this route does not take that method"}
_SHAPE = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERROR = {"description": "An error", "content": {"application/json": {"schema": _SHAPE}}}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "5XX": _ERROR}
"""For the OpenAPI document: what every route may answer."""


class ApiError(Exception):
    """``param``: the field at fault; ``code``: a word for programs; ``retry_after``: seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body(), self.status, headers)


class ClientGone(Exception):
    """Nobody waits for the answer any more, so there is none."""


def as_api_error(error: KVPagerError) -> ApiError:
    """What a client is told of an error of the engine. Only those that are the client's say more than that."""
    if isinstance(error, EngineGone):
        return ApiError(503, str(error), code="engine_unavailable", retry_after=error.retry_after)
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=error.retry_after)
    if isinstance(error, RequestError | ConfigError):
        return ApiError(400, str(error))
    return ApiError(500, "the server could not do this; its log says more", code="internal_error")


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, answer_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(KVPagerError, _answer_kvpager_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)


async def _answer_kvpager_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, KVPagerError)
    told = as_api_error(error)
    if told.status >= 500 and not isinstance(error, EngineGone):
        route = getattr(request.scope.get("route"), "path", "an unknown route")  # the path itself is the client's
        _log.error("%s while answering %s %s", type(error).__name__, request.method, route)
    return told.response()


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, body = first["loc"], error.body
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON").response()
    param = _param(where[1:], body) if where[0] == "body" else str(where[-1])
    message = _unknown(request, where) if first["type"] == "extra_forbidden" else _sentence(first)
    return ApiError(400, f"{param}: {message}" if param else message, param=param).response()


def _unknown(request: Request, where: Sequence[str | int]) -> str:
    """Of a field of the body itself, which one may have been meant."""
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    near: list[str] = []
    if len(where) == 2 and isinstance(model, type) and issubclass(model, BaseModel):
        known = [each.alias or name for name, each in model.model_fields.items()]
        near = get_close_matches(str(where[1])[:128], known, 1)
    return f"unknown field; did you mean {near[0]!r}?" if near else "unknown field; remove it"


def _sentence(error: dict[str, Any]) -> str:
    """Pydantic's own, without what was given."""
    message = str(error["msg"])
    return message[:1].lower() + message[1:]


def _param(path: Sequence[str | int], body: object) -> str | None:
    """``messages[0].content``. Pydantic's path also names the alternatives of a type, which no client knows."""
    param = ""
    for number, step in enumerate(path):
        if isinstance(step, int):
            if isinstance(body, list):
                param += f"[{step}]"
                body = body[step] if step < len(body) else None
        elif isinstance(body, dict) and (step in body or number == len(path) - 1):
            param += f".{step}" if param else step
            body = body.get(step)
    return param[:128] or None


async def _answer_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    response = ApiError(error.status_code, _PHRASES.get(error.status_code, str(error.detail))).response()
    response.headers.update(error.headers or {})
    return response
