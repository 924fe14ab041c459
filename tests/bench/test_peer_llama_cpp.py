"""What the runner of llama.cpp reads off its server's stream, with a socket in the server's place."""

import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvpager.bench

RUNNERS = Path(kvpager.bench.__file__).parent / "peer_runners"


@pytest.fixture(scope="module")
def runner() -> Iterator[Any]:
    sys.path.insert(0, str(RUNNERS))
    spec = importlib.util.spec_from_file_location("run_llama_cpp_tested", RUNNERS / "run_llama_cpp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(RUNNERS))
        sys.modules.pop("serving_loop", None)


@pytest.fixture
def wire(runner: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, socket.socket]]:
    """A stream, and the server's end of it."""
    here, there = socket.socketpair()
    monkeypatch.setattr(runner.socket, "create_connection", lambda address: here)
    with here, there:
        yield runner.Stream(1, {"prompt": [5, 6], "max_tokens": 4}), there


def event(predicted: int, token: int | None) -> bytes:
    tokens = [] if token is None else [token]
    told = {"index": 0, "content": "é}", "tokens": tokens, "stop": False, "tokens_predicted": predicted}
    body = b"data: " + json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(body), body)


class TestStream:
    def test_it_sends_ids_and_asks_for_greedy_tokens(self, wire: tuple[Any, socket.socket]) -> None:
        head, _, body = wire[1].recv(1 << 16).partition(b"\r\n\r\n")
        assert head.startswith(b"POST /completion HTTP/1.1")
        asked = json.loads(body)
        assert (asked["prompt"], asked["n_predict"], asked["top_k"], asked["stream"]) == ([5, 6], 4, 1, True)

    def test_tokens_come_as_they_are_sent_also_in_pieces(self, wire: tuple[Any, socket.socket]) -> None:
        stream, server = wire
        first = b"HTTP/1.1 200 OK\r\n\r\n" + event(1, 11)
        server.sendall(first[:40])
        assert stream.tokens() == []
        server.sendall(first[40:] + event(2, 12))
        assert stream.tokens() == [11, 12]

    def test_a_token_that_was_not_told_is_counted(self, wire: tuple[Any, socket.socket]) -> None:
        stream, server = wire
        server.sendall(event(1, 11) + event(3, 13))
        assert stream.tokens() == [11, None, 13]
        server.sendall(event(4, None))  # the last event tells a number alone
        assert stream.tokens() == [None]

    def test_a_refusal_is_an_error(self, wire: tuple[Any, socket.socket]) -> None:
        stream, server = wire
        server.sendall(b'data: {"error":{"message":"context size exceeded"}}\n\n')
        with pytest.raises(RuntimeError, match="context size exceeded"):
            stream.tokens()

    def test_an_early_end_is_an_error(self, wire: tuple[Any, socket.socket]) -> None:
        stream, server = wire
        server.sendall(b"HTTP/1.1 500 Internal\r\n\r\n")
        server.shutdown(socket.SHUT_WR)
        assert stream.tokens() == []
        with pytest.raises(RuntimeError, match="500 Internal"):
            stream.tokens()
