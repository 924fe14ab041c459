"""Headers within bounds, ids cleaned and echoed, and errors that nobody caught."""

import json
import logging

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from kvpager.server.bodies import Bodies
from kvpager.server.envelope import MAX_HEADER_BYTES, MAX_HEADERS, Envelope
from kvpager.server.request_ids import request_id_of, session_of
from kvpager.server.tenant import Tenant
from tests.server.asgi import ask, asked

MARKER = "marker-7f3a"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    if scope["path"] == "/broken":
        raise KeyError(MARKER) from ValueError(MARKER)
    await JSONResponse({"id": request_id_of(request), "session": session_of(request)})(scope, receive, send)


APP = Envelope(echo)


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        (b"abc-1/2:3", "abc-1/2:3"),
        (b"x" * 300, "x" * 128),
        (b"a\r\nSet-Cookie: b\x1b[31m c\xc3\xa9\x00\x7f", "aSet-Cookie:b[31mc"),
    ],
)
def test_an_id_is_cleaned_and_echoed(given: bytes, echoed: str) -> None:
    answer = ask(APP, "GET", "/", [(b"x-request-id", given), (b"x-session-id", given)])
    assert answer.headers["x-request-id"] == echoed
    assert answer.json == {"id": echoed, "session": echoed}


def test_who_gives_no_id_gets_one() -> None:
    names = {
        ask(APP, "GET", "/", headers).headers["x-request-id"] for headers in ([], [(b"x-request-id", b"\x1b\xff")])
    }
    assert len(names) == 2
    assert all(name.startswith("req-") for name in names)


def test_headers_are_bounded() -> None:
    fits = [(b"x-a", b"")] * MAX_HEADERS
    assert ask(APP, "GET", "/", fits).status == 200
    assert ask(APP, "GET", "/", [(b"x", b"a" * (MAX_HEADER_BYTES - 2))]).status == 200
    for headers, query in (
        ([*fits, (b"x-a", b"")], b""),
        ([(b"x", b"a" * MAX_HEADER_BYTES)], b""),
        ([], b"q" * MAX_HEADER_BYTES),
    ):
        answer = ask(APP, "GET", "/", headers, query=query)
        assert answer.status == 431
        assert answer.json["error"]["code"] == "headers_too_large"


def test_an_error_that_nobody_caught_tells_no_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        answer = ask(APP, "GET", "/broken", [(b"x-request-id", b"req-of-mine")])
    assert answer.status == 500
    assert answer.json["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"] == "req-of-mine"
    assert MARKER not in answer.body.decode() + caplog.text
    assert "req-of-mine failed: KeyError at " in caplog.text
    assert "ValueError" in caplog.text
    with caplog.at_level(logging.DEBUG):
        ask(APP, "GET", "/broken")
    assert MARKER in caplog.text  # whoever asks for everything gets it


def test_answers_are_not_kept_framed_or_guessed() -> None:
    headers = ask(APP, "GET", "/").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


KNOWN = {"tenant": Tenant()}  # as the guard leaves it


async def measure(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await JSONResponse({"size": len(body)})(scope, receive, send)


def test_bodies_are_bounded_whatever_the_header_says() -> None:
    app = Bodies(measure, max_bytes=100)
    for chunks, length in (([b"a" * 100], b"100"), ([b"a" * 50, b"a" * 50], None), ([b""], b"0")):
        headers = [] if length is None else [(b"content-length", length)]
        answer = ask(app, "POST", "/", headers, body=chunks, state=KNOWN)
        assert (answer.status, answer.json["size"]) == (200, sum(map(len, chunks)))
    announced = ask(app, "POST", "/", [(b"content-length", b"101")], body=[b"a" * 101], state=KNOWN)
    assert (announced.status, announced.reads) == (413, 0)
    for chunks in ([b"a" * 101], [b"a" * 60, b"a" * 60, b"a"]):
        answer = ask(app, "POST", "/", [(b"transfer-encoding", b"chunked")], body=chunks, state=KNOWN)
        assert answer.status == 413
        assert json.loads(answer.body)["error"]["code"] == "body_too_large"
        assert answer.headers["connection"] == "close"
    assert app._held == 0


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the route began")

    app = Bodies(never, max_bytes=100, seconds=0.05)
    answer = ask(app, "POST", "/", [(b"content-length", b"9")], body=[], state=KNOWN)
    assert answer.status == 408


def test_bodies_together_are_bounded() -> None:
    async def again(scope: Scope, receive: Receive, send: Send) -> None:
        """Each request holds its body while the next one comes."""
        nonlocal depth
        depth += 1
        inner = await asked(app, "POST", "/", body=[b"a" * 100], state=KNOWN)
        await JSONResponse({"inner": inner.status}, inner.status, dict(inner.headers))(scope, receive, send)

    depth, app = 0, Bodies(again, max_bytes=100)
    answer = ask(app, "POST", "/", body=[b"a" * 100], state=KNOWN)
    assert (answer.status, answer.headers["retry-after"], depth) == (503, "1", 32)
    assert app._held == 0


def test_who_was_not_asked_for_a_key_sends_no_body() -> None:
    answer = ask(Bodies(measure, max_bytes=100), "GET", "/health", body=[b"a" * 50, b"a" * 500])
    assert (answer.status, answer.json["size"], answer.reads) == (200, 0, 0)
