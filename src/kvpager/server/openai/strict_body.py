"""Bodies read strictly, as server/limits.py has it, for routes that declare theirs as usual. FastAPI's own reading lets
NaN and lone surrogates pass, and answers deep nesting with 500.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from kvpager.server.errors import ApiError
from kvpager.server.limits import parse_json


class _StrictRequest(Request):
    """A request whose body has been parsed."""

    parsed: Any = None

    async def json(self) -> Any:
        return self.parsed


class StrictRoute(APIRoute):
    """For ``APIRouter(route_class=StrictRoute)``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        has_body = self.body_field is not None

        async def strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            if has_body:
                body = await strict.body()
                if not body:
                    raise ApiError(400, "the body is empty; send a JSON object", code="invalid_json")
                strict.parsed = parse_json(body)
            return await handle(strict)

        return strictly
