"""Stands before every route: who calls, and whether they may. A pure ASGI middleware; reads no body.

It looks at the path as it came, before any routing: whatever is not exactly one of the liveness routes needs a key, so
no spelling of a path leads around it. Without keys everybody who reaches the server is an operator; then pages of other
sites in a browser on this machine are kept out by the Host header, which they can't choose.
"""

import base64
import binascii

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kvpager.config.server_options import ServerOptions
from kvpager.server.errors import ApiError
from kvpager.server.keys import ApiKeys, is_loopback
from kvpager.server.tenant import Tenant

LIVENESS = frozenset({"/health", "/ready", "/version"})
_JSON = "application/json"
_POLICY_VIOLATION = 1008  # of a WebSocket, RFC 6455


class Guard:
    """``keys``: none lets everybody in."""

    def __init__(self, app: ASGIApp, options: ServerOptions, keys: ApiKeys) -> None:
        self._app, self._keys = app, keys
        self._checks_host = not len(keys) and is_loopback(options.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            try:
                self._admit(scope)
            except ApiError as error:
                await _refusal(error)(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Names the tenant. Raises ApiError for whoever may not pass."""
        if scope["path"] in LIVENESS and scope["method"] in ("GET", "HEAD"):
            return
        headers = Headers(scope=scope)
        tenant = self._tenant(headers) if len(self._keys) else Tenant()
        if self._checks_host and not is_loopback(_host(headers)):
            raise ApiError(
                403, "the Host header names another machine; this server answers to 127.0.0.1 and localhost",
                code="wrong_host",
            )  # fmt: skip
        # What a form of another site can send without asking first is not JSON.
        if scope["method"] == "POST" and _media_type(headers) != _JSON:
            raise ApiError(415, f"send the header Content-Type: {_JSON}", code="wrong_content_type")
        scope.setdefault("state", {})["tenant"] = tenant

    def _tenant(self, headers: Headers) -> Tenant:
        given = headers.getlist("authorization")
        key = _key(given[0]) if len(given) == 1 else None
        tenant = None if key is None else self._keys.tenant(key)
        if tenant is None:
            what = "this API key is not known" if given else "an API key is needed"
            raise ApiError(401, f"{what}: send the header Authorization: Bearer KEY", code="invalid_api_key")
        return tenant


def _key(authorization: str) -> bytes | None:
    """The key in a header; of Basic, which browsers ask their users for, it is the password."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.encode("latin-1")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return None


def _host(headers: Headers) -> str:
    """The name in the Host header, without its port; empty if it is missing, or there are several."""
    given = headers.getlist("host")
    if len(given) != 1:
        return ""
    name, colon, port = given[0].rpartition(":")
    return (name if colon and port.isdigit() else given[0]).lower()


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _refusal(error: ApiError) -> JSONResponse:
    """The connection is closed, since the body was not read."""
    response = JSONResponse(error.body(), error.status, {"Connection": "close"})
    if error.status == 401:
        response.headers.append("WWW-Authenticate", 'Bearer realm="kvpager"')
        response.headers.append("WWW-Authenticate", 'Basic realm="kvpager", charset="UTF-8"')
    return response
