"""Bodies read strictly: UTF-8, JSON as the RFC has it, not too deep. FastAPI's own reading lets NaN and lone
surrogates pass, and answers deep nesting with 500.

Routes of a router made with ``route_class=StrictRoute`` declare their body as usual.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from kvpager.server.errors import ApiError
from kvpager.server.openai.limits import MAX_DEPTH


class StrictRequest(Request):
    """A request whose body was parsed by ``parse_json``."""

    parsed: Any = None

    async def json(self) -> Any:
        return self.parsed


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        has_body = self.body_field is not None

        async def strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            if has_body:
                _check_type(strict)
                strict.parsed = parse_json(await strict.body())
            return await handle(strict)

        return strictly


def _check_type(request: Request) -> None:
    """A page of another site can make a browser send any text, but not this type without being asked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send the body as JSON, with the header 'Content-Type: application/json'")


def parse_json(body: bytes) -> Any:
    """Raises ApiError 400 for what is not strict JSON: no NaN, no lone surrogate, at most MAX_DEPTH deep."""
    if not body:
        raise ApiError(400, "the body is empty; send a JSON object")
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        text = str(error)  # says what and where, and quotes nothing
        raise ApiError(400, f"the body is not JSON: {text}", code="invalid_json") from None
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise ApiError(400, f"the body nests lists and objects deeper than {MAX_DEPTH}", code="invalid_json")
    return value


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
