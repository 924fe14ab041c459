"""Streams over a socket: what goes over it, and that nothing is left of a client that went away."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from kvpager.engine.request import TokenEvent
from kvpager.engine.sampling_params import Sampling
from kvpager.server.answer import Answer, Ask
from kvpager.server.openai.streaming import Stream
from tests.server.openai.settled import assert_settled
from tests.server.serving import Serving, serving


@pytest.fixture(scope="module")
def held(model: str) -> Iterator[Serving]:
    with serving(model) as opened:
        yield opened


class Gate:
    """Lets the engine make so many steps, and no more until it is opened. Its thread goes on, and hears who leaves."""

    def __init__(self, server: Serving, steps: int) -> None:
        self._left = steps
        self.is_holding = threading.Event()
        self._engine: Any = server.engine
        self._step = self._engine.step
        self._engine.step = self._pass

    def _pass(self) -> list[TokenEvent]:
        self._left -= 1
        if self._left >= 0:
            return self._step()
        self.is_holding.set()
        time.sleep(0.001)
        return []

    def open(self) -> None:
        del self._engine.step


def test_a_stream_is_events_of_json_and_ends_with_done(client: httpx.Client) -> None:
    response = client.post("/v1/completions", json={"prompt": "the moon", "max_tokens": 3, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: "))["object"] == "text_completion" for event in events)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("steps", [0, 1, 5], ids=["queued", "prefill", "decode"])
@pytest.mark.parametrize("prompts", [1, 3], ids=["one", "batch"])
def test_a_client_that_goes_away_is_computed_for_no_more(held: Serving, stream: bool, steps: int, prompts: int) -> None:
    gate = Gate(held, steps)
    try:
        with ask(held, {"prompt": ["the moon"] * prompts, "max_tokens": 40, "ignore_eos": True, "stream": stream}):
            assert gate.is_holding.wait(60)
        assert_settled(held)
    finally:
        gate.open()
    assert_settled(held)


def test_a_client_that_stays_gets_all_of_it(held: Serving) -> None:
    """The positive control."""
    gate = Gate(held, 2)
    with ask(held, {"prompt": "the moon", "max_tokens": 20, "ignore_eos": True, "stream": True}) as sock:
        assert gate.is_holding.wait(60)
        assert held.engine.has_work
        gate.open()
        received = b""
        while data := sock.recv(65536):
            received += data
    assert b"[DONE]" in received
    assert_settled(held)


def test_a_batch_of_which_one_is_refused_leaves_nothing_running(held: Serving) -> None:
    with httpx.Client(base_url=held.url, timeout=60) as client:
        for prompt in ([[5], [6], [5] * 600], [[5], [6], [320]]):
            assert client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 100}).status_code == 400
        assert held.service.thread.num_open == 0


def ask(server: Serving, body: dict[str, Any]) -> socket.socket:
    """A connection on which a completion was asked for. Leaving it closes it."""
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpager.server.openai.streaming._SEND_SECONDS", 0.05)
    cancelled: list[Answer] = []
    answer = Answer(Ask([1], Sampling()), cancelled.append)

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"

    async def full(message: object) -> None:
        if message["type"] == "http.response.body":  # type: ignore[index]
            await asyncio.Event().wait()

    async def silent() -> Any:
        await asyncio.Event().wait()

    stream = Stream(chunks(), [answer], drain_seconds=1)
    asyncio.run(asyncio.wait_for(stream({"type": "http", "method": "POST"}, silent, full), 60))
    assert cancelled == [answer]
