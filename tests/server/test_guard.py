"""Who may pass: by key, Host and content type. The routes behind are of no interest here."""

import base64

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from kvpager.config.server_options import ServerOptions
from kvpager.server.guard import LIVENESS, Guard
from kvpager.server.keys import ApiKeys
from kvpager.server.tenant import named_tenant, tenant_of
from tests.server.asgi import LOCAL, ask

KEY, OTHER = b"sk-key-0123456789abc", b"sk-other-0123456789a"
KEYS = ApiKeys(
    {
        KEY.decode(): named_tenant("team-a", is_operator=False),
        OTHER.decode(): named_tenant("ops", is_operator=True),
    }
)
JSON = (b"content-type", b"application/json")


async def who(scope: Scope, receive: Receive, send: Send) -> None:
    """What stands behind the guard."""
    request = Request(scope, receive)
    tenant = tenant_of(request).name if "tenant" in scope["state"] else None
    await JSONResponse({"tenant": tenant, "body": (await request.body()).decode()})(scope, receive, send)


GUARDED = Guard(who, ServerOptions(), KEYS)
OPEN = Guard(who, ServerOptions(), ApiKeys())


def bearer(key: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Bearer " + key)


def basic(user: bytes, key: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Basic " + base64.b64encode(user + b":" + key))


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (bearer(KEY), "team-a"),
        ((b"authorization", b"bearer " + KEY), "team-a"),
        (bearer(OTHER), "ops"),
        (basic(b"", KEY), "team-a"),
        (basic(b"anybody", OTHER), "ops"),
    ],
)
def test_a_key_names_the_tenant(header: tuple[bytes, bytes], tenant: str) -> None:
    answer = ask(GUARDED, "POST", "/x", [header, JSON], body=[b"a", b"b"])
    assert (answer.status, answer.json) == (200, {"tenant": tenant, "body": "ab"})


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [bearer(b"")],
        [(b"authorization", b"")],
        [(b"authorization", KEY)],
        [bearer(b" " + KEY)],
        [bearer(KEY + b" ")],
        [bearer(KEY + b"\0")],
        [bearer(KEY[:-1])],
        [bearer(b"\xc3\xa9\xff" + KEY)],
        [bearer(KEY), bearer(KEY)],
        [bearer(KEY + b", Bearer " + OTHER)],
        [basic(KEY, b"")],
        [(b"authorization", b"Basic " + KEY)],
        [(b"authorization", b"Basic !!!!")],
        [(b"authorization", b"Basic \xe9")],
        [(b"authorization", b"Digest " + KEY)],
        [(b"x-api-key", KEY)],
    ],
)
def test_all_else_is_refused_before_the_body_is_read(headers: list[tuple[bytes, bytes]]) -> None:
    answer = ask(GUARDED, "POST", "/x", [*headers, JSON, LOCAL], body=[b"secret"])
    assert (answer.status, answer.reads) == (401, 0)
    assert answer.json["error"]["type"] == "authentication_error"
    assert [value.split()[0] for value in answer.headers.getlist("www-authenticate")] == ["Bearer", "Basic"]
    assert answer.headers["connection"] == "close"
    assert KEY not in answer.body


def test_only_the_liveness_routes_need_no_key() -> None:
    for path in LIVENESS:
        assert ask(GUARDED, "GET", path).json["tenant"] is None
    for path in ("/health/", "//health", "/Health", "/./health", "/v1/../health", "/health/../v1/models", "", "*"):
        assert ask(GUARDED, "GET", path).status == 401, path


def test_a_socket_is_closed() -> None:
    import asyncio

    sent: list[Message] = []

    async def connect() -> None:
        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await OPEN({"type": "websocket", "path": "/health", "headers": []}, receive, send)

    asyncio.run(connect())
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([b"127.0.0.1"], 200),
        ([b"LOCALHOST:8000"], 200),
        ([b"[::1]:8000"], 200),
        ([b"[::1]"], 200),
        ([b"evil.example"], 403),
        ([b"127.0.0.1.evil.example:8000"], 403),
        ([b"evil.example:127.0.0.1"], 403),
        ([b""], 403),
        ([], 403),
        ([b"localhost", b"evil.example"], 403),
    ],
)
def test_without_keys_only_this_machine_is_named(hosts: list[bytes], status: int) -> None:
    assert ask(OPEN, "GET", "/x", [(b"host", host) for host in hosts]).status == status
    anywhere = Guard(who, ServerOptions(host="0.0.0.0", allow_open_bind=True), ApiKeys())
    assert ask(anywhere, "GET", "/x", [(b"host", host) for host in hosts]).status == 200
    assert ask(GUARDED, "GET", "/x", [bearer(KEY), *((b"host", host) for host in hosts)]).status == 200


def test_a_form_of_another_site_can_not_post() -> None:
    kinds = {
        b"application/json": 200,
        b"Application/JSON; charset=utf-8": 200,
        b"text/plain": 415,
        b"application/x-www-form-urlencoded": 415,
        b"multipart/form-data; boundary=application/json": 415,
        b"": 415,
    }
    for kind, status in kinds.items():
        answer = ask(OPEN, "POST", "/x", [LOCAL, (b"content-type", kind)])
        assert answer.status == status, kind
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert ask(OPEN, "POST", "/x", [LOCAL]).status == 415
    assert ask(OPEN, "GET", "/x", [LOCAL]).status == 200
