"""Connections that send no request, part of one, or no HTTP; and more of them than there may be."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from kvpager.server import connection
from kvpager.server.connection import Connection
from tests.server.raw_client import RawClient

SHORT = 0.2  # seconds for a head
TRIES = 20  # at what a machine that stalls for so long spoils
_HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


_is_asked = threading.Event()  # the head of a request was whole


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    _is_asked.set()
    body = (await receive())["body"] or (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def listening(most: int | None = None) -> Iterator[str]:
    config = uvicorn.Config(
        echo, host="127.0.0.1", port=0, http=Connection, lifespan="off", log_level="error", limit_concurrency=most
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening() as opened:
        yield opened


def error_of(answer: bytes, status: int) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in head.lower()
    return json.loads(body)["error"]


def test_a_head_that_does_not_end_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)
    for _ in range(TRIES):
        with RawClient(url) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
            answer = client.read()
        if answer:  # else this machine took longer than that to send it
            break
    error = error_of(answer, 408)
    assert (error["code"], error["type"]) == ("head_timeout", "invalid_request_error")


def test_sending_a_head_byte_by_byte_gives_no_more_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)
    with RawClient(url) as client:
        stop = threading.Event()

        def drip() -> None:
            try:
                while not stop.wait(SHORT / 10):
                    client.send(b"x")
            except OSError:
                pass

        client.send(b"GET /")
        dripping = threading.Thread(target=drip)
        dripping.start()
        answer = client.read(until=b"head_timeout")
        stop.set()
        dripping.join()
    assert b" 408 " in answer or not answer  # what was sent to a closed connection may have reset it


def test_a_connection_without_a_request_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)
    with RawClient(url) as client:
        assert client.read() == b""


def with_a_head(url: str) -> RawClient:
    """A client whose head has come in time, though this machine may take longer than that now and then."""
    for _ in range(TRIES):
        _is_asked.clear()
        client = RawClient(url)
        with suppress(ConnectionError):
            client.send(_HEAD)
        if _is_asked.wait(10 * SHORT):
            return client
        client.close()
    raise AssertionError("no head came in time")


def test_a_body_may_take_longer_than_a_head_and_so_may_the_next_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(connection, "HEAD_SECONDS", SHORT)
    with with_a_head(url) as client:
        time.sleep(3 * SHORT)
        client.send(b"hi")
        assert client.read(until=b"hi").startswith(b"HTTP/1.1 200")
        time.sleep(3 * SHORT)  # idle, as connections are that are kept for later
        client.send(_HEAD + b"ho")
        assert client.read(until=b"ho").startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_told_so_in_the_usual_shape(url: str) -> None:
    with RawClient(url) as client:
        client.send(b"\x16\x03\x01 this is TLS\r\n\r\n")
        assert error_of(client.read(), 400)["code"] == "invalid_http"


def test_a_connection_too_many_is_refused_with_a_time_to_wait() -> None:
    with listening(most=2) as url, RawClient(url) as first:
        first.send(_HEAD + b"ok")
        assert first.read(until=b"ok").startswith(b"HTTP/1.1 200")  # control
        with RawClient(url) as second:
            second.send(_HEAD + b"no")
            answer = second.read()
    assert error_of(answer, 503)["code"] == "overloaded"
    assert b"retry-after: 1" in answer.lower()
