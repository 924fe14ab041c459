"""Bodies of requests, read whole and within bounds before a route begins: size, time, and all of them together.

Stands behind the guard: for whoever it let through without asking who they are, no body is read.
"""

import asyncio

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvpager.config.sizes import format_size
from kvpager.server.errors import ApiError

BODY_SECONDS = 60.0  # that a body may take to come
_TOGETHER = 32  # bodies of the largest size


class Bodies:
    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float = BODY_SECONDS) -> None:
        self._app, self._max_bytes, self._seconds = app, max_bytes, seconds
        self._held = 0  # bytes of requests under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if "tenant" not in scope["state"]:
            await self._app(scope, _replay(b"", receive), send)
            return
        body, size = bytearray(), 0
        try:
            self._check(_announced(scope))
            async with asyncio.timeout(self._seconds):
                if not await self._read(receive, body):
                    return  # the client is gone
        except TimeoutError:
            error = ApiError(408, f"the body did not come within {self._seconds:.0f} s", code="body_timeout")
            await _refusal(error)(scope, receive, send)
        except ApiError as error:
            await _refusal(error)(scope, receive, send)
        else:
            replayed, size = _replay(bytes(body), receive), len(body)
            body.clear()  # or it would be there twice, as long as the answer takes
            await self._app(scope, replayed, send)
        finally:
            self._held -= max(size, len(body))

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """False if the client went away."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            chunk = message.get("body", b"")
            self._check(len(body) + len(chunk))
            self._held += len(chunk)
            body += chunk
            if not message.get("more_body", False):
                return True

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise ApiError(413, f"a body may have {format_size(self._max_bytes)}", code="body_too_large")
        if size and self._held + size > _TOGETHER * self._max_bytes:
            raise ApiError(503, "too many bodies are coming in at once", code="overloaded", retry_after=1)


def _announced(scope: Scope) -> int:
    """What the header says; the web server has checked that it is a number."""
    return max((int(value) for name, value in scope["headers"] if name == b"content-length"), default=0)


def _replay(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


def _refusal(error: ApiError) -> JSONResponse:
    """The connection is closed, since the rest of the body was not read."""
    response = error.response()
    response.headers["Connection"] = "close"
    return response
