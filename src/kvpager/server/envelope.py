"""The outermost layer: bounds on headers, the request's id, headers of every answer, and errors nobody caught.

Nothing that goes wrong inside reaches the web server, which would log it with its message; see log_filter.py.
"""

import logging

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvpager.server.errors import ApiError
from kvpager.server.log_filter import trace_without_content
from kvpager.server.request_ids import REQUEST_ID, name_request

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10  # all of them, and the path with its query
_ADDED = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)


class Envelope:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = name_request(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                for name, value in _ADDED.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            app = self._app if _fits(scope) else _too_large()
            await app(scope, receive, send_with_headers)
        except Exception as error:
            _log.error("request %s failed: %s", request_id, trace_without_content(error))
            _log.debug("request %s failed", request_id, exc_info=error)
            if not has_begun:
                inner = ApiError(500, "the server failed; its log says where, under this request's id")
                await inner.response()(scope, receive, send_with_headers)


def _fits(scope: Scope) -> bool:
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    return size <= MAX_HEADER_BYTES and len(scope["headers"]) <= MAX_HEADERS


def _too_large() -> JSONResponse:
    error = ApiError(
        431, f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together are read", code="headers_too_large"
    )
    return JSONResponse(error.body(), error.status, {"Connection": "close"})
