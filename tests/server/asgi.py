"""One request to an ASGI application without a web server: header and path bytes as they are, and what was read.

answer = ask(app, "GET", "//health", headers=[(b"host", b"x")])
answer.status, answer.headers, answer.json, answer.reads
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class Answer:
    """``reads``: how often the application asked for the body."""

    status: int
    headers: Headers
    body: bytes
    reads: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


LOCAL = (b"host", b"127.0.0.1:8000")


def ask(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Iterable[tuple[bytes, bytes]] = (LOCAL,),
    body: Iterable[bytes] = (b"",),
    query: bytes = b"",
    state: Mapping[str, object] | None = None,
) -> Answer:
    return asyncio.run(asked(app, method, path, headers, body, query, state))


async def asked(
    app: ASGIApp,
    method: str,
    path: str,
    headers: Iterable[tuple[bytes, bytes]] = (LOCAL,),
    body: Iterable[bytes] = (b"",),
    query: bytes = b"",
    state: Mapping[str, object] | None = None,
) -> Answer:
    """``body``: its chunks; after the last one, nothing comes until the application has ended. ``state``: what layers
    before the application have found out."""
    chunks = list(body)
    sent: list[Message] = []
    reads = 0

    async def receive() -> Message:
        nonlocal reads
        reads += 1
        if not chunks:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("latin-1", "replace"),
        "root_path": "",
        "query_string": query,
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": dict(state or {}),
    }
    await app(scope, receive, send)
    start = sent[0]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(start["status"], Headers(raw=start["headers"]), content, reads)
