"""A connection of the web server: uvicorn's, with a time for the head of a request, and answers in the usual shape.

uvicorn ends what is idle after an answer, and nothing else. Who opened connections and sent nothing, or a head byte by
byte, would hold as many as there may be, and keep everybody else out. Knows no route.
"""

import asyncio
import json
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvpager.server.errors import ApiError

HEAD_SECONDS = 20.0  # from its first byte, or from the opening of the connection
_REASONS = {400: b"Bad Request", 408: b"Request Timeout"}


class Connection(H11Protocol):
    """For ``uvicorn.Config(http=Connection)``. ``limit_concurrency`` counts connections."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn's own answer is plain text
        self._behind: ASGIApp = self.app
        self.app = self._let_in
        self._limit: asyncio.TimerHandle | None = None
        self._has_begun = False  # something of the head is here

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._most is None or len(self.connections) < self._most:
            await self._behind(scope, receive, send)
            return
        error = ApiError(503, "too many connections are open at once", code="overloaded", retry_after=1)
        response = error.response()
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._mind_the_head()

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        super().data_received(data)
        self._mind_the_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_limit()
        super().connection_lost(exc)

    def _mind_the_head(self) -> None:
        """Its time runs until it is whole, however many pieces come."""
        if self.conn.their_state is not h11.IDLE:
            self._forget_limit()
        elif self._limit is None:
            self._limit = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget_limit(self) -> None:
        self._has_begun = False
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self._has_begun:
            message = f"the head of the request did not come within {HEAD_SECONDS:.0f} s"
            self._refuse(ApiError(408, message, code="head_timeout"))
        else:  # nobody asked for anything
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "what came is no HTTP request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """The connection is closed: what else comes has no beginning."""
        content = json.dumps(error.body()).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(content))), ("connection", "close")]
        response = h11.Response(status_code=error.status, headers=headers, reason=_REASONS[error.status])
        for event in (response, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
