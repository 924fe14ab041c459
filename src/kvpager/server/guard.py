"""Stands before every route: who calls, and whether they may. A pure ASGI middleware; reads no body."""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvpager.config.server_options import ServerOptions
from kvpager.server.tenant import Tenant


class Guard:
    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["tenant"] = Tenant()
        await self._app(scope, receive, send)
