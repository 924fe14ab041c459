"""Open case O-25: one value beyond its limit in one field must not end, slow or swell the server.

Each is answered with an error that names the field; the values at the limits work; the server goes on.
"""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.tiny_model import save_tiny_model
from tests.server.serving import Serving, serving

VOCABULARY = 320  # of the tiny model
CONTEXT = 512
ROOM = 64 << 20  # bytes by which memory may grow
SECONDS = 60  # each answer takes less than one; a busy machine gets more
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened


@pytest.fixture(autouse=True)
def bounded(client: httpx.Client) -> Iterator[None]:
    """Whatever a test sends, the server's process grows by little."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    yield
    assert _memory("VmHWM") - before < ROOM


def raw(route: str, field: str, value: str) -> bytes:
    """A body that is right but for one field, whose JSON is ``value``."""
    body: dict[str, Any] = {"max_tokens": 2}
    if route == CHAT:
        body |= {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    else:
        body |= {"prompt": "hi"}
    body.pop(field, None)
    return f"{json.dumps(body)[:-1]}, {json.dumps(field)}: {value}}}".encode()


BEYOND = [
    *((TEXT, "n", value) for value in ("0", "-1", "1e9", "1000000000", "17", "true")),
    (TEXT, "best_of", "1000000000"),
    (TEXT, "best_of", "2"),
    *((TEXT, "max_tokens", value) for value in ("-1", "0", "2147483648", f"{2**63}", "1e308", '"5"', "true", "5.0")),
    (CHAT, "max_tokens", "0"),
    (CHAT, "max_completion_tokens", "-1"),
    (TEXT, "min_tokens", "3"),
    *((TEXT, "logprobs", value) for value in ("-2", "-1", "1000000000", "21", "true")),
    *((CHAT, "top_logprobs", value) for value in ("-2", "-1", "1000000000", "21")),
    *((TEXT, "temperature", value) for value in ("-1", "1e308", '"1"', "true")),
    *((TEXT, "top_p", value) for value in ("-1", "0", "1.1")),
    *((TEXT, "top_k", value) for value in ("-5", f"{2**40}")),
    *((TEXT, "min_p", value) for value in ("-0.1", "1.1")),
    *((TEXT, "seed", value) for value in (f"{2**63}", f"{-(2**70)}", "1.5")),
    *((TEXT, "logit_bias", f'{{"{token}": 1}}') for token in (VOCABULARY, -1, "abc", 2**40, "\u0661")),
    (TEXT, "logit_bias", json.dumps({str(token): 1 for token in range(100_000)})),
    (TEXT, "logit_bias", '{"1": 101}'),
    (TEXT, "logit_bias", '{"1": true}'),
    *((TEXT, "stop", json.dumps(value)) for value in ("", ["x"] * 10_000, "x" * 2**20, [""], [1], 5, ["x" * 257])),
    *(
        (TEXT, "prompt", json.dumps(value))
        for value in ("", [], [[]], [VOCABULARY], [-1], [2**40], [[[1]]], [[1], "a"])
    ),
    *((TEXT, "prompt", json.dumps(value)) for value in ([1, True], [1.5], {"a": 1}, None, ["a"] * 129, [1] * CONTEXT)),
    (TEXT, "prompt", json.dumps(["a"] * 1_000_000)),
    (TEXT, "stop_token_ids", f"[{VOCABULARY}]"),
    (TEXT, "presence_penalty", "2.1"),
    (TEXT, "frequency_penalty", "-2.1"),
    (TEXT, "repetition_penalty", "0"),
    (TEXT, "priority", f"{2**31}"),
    (TEXT, "cache_salt", json.dumps("x" * 300)),
    (TEXT, "attend", '"nonsense"'),
    (TEXT, "stream", '"yes"'),
    (TEXT, "stream_options", '{"include_usage": true}'),
    (CHAT, "messages", "[]"),
    (CHAT, "messages", json.dumps([{"role": "user", "content": "hi"}] * 5000)),
    (CHAT, "n_discard", "-1"),
    (TEXT, "n_discard", "-1"),
    (TEXT, "suffix", '"and so on"'),
]


def _name(value: object) -> str:
    text = str(value).removeprefix("/v1/")
    return text if len(text) <= 24 else f"{text[:20]}-{len(text)}"


def check_refusal(response: httpx.Response, statuses: tuple[int, ...] = (400, 413, 422)) -> dict[str, Any]:
    assert response.status_code in statuses, response.text[:500]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 400  # it quotes nothing of what was sent
    return error


@pytest.mark.parametrize(("route", "field", "value"), BEYOND, ids=_name)
def test_a_value_beyond_its_limit_is_refused_and_its_field_named(
    client: httpx.Client, route: str, field: str, value: str
) -> None:
    begin = time.perf_counter()
    response = client.post(route, content=raw(route, field, value), headers={"Content-Type": "application/json"})
    assert time.perf_counter() - begin < SECONDS
    error = check_refusal(response)
    assert error["param"] == field
    assert field in error["message"]


AT_THE_LIMIT = [
    (TEXT, "n", "16"),
    (TEXT, "best_of", "1"),
    (TEXT, "max_tokens", "1"),
    (TEXT, "max_tokens", f"{CONTEXT - 2}"),
    (TEXT, "min_tokens", "2"),
    (TEXT, "min_tokens", "0"),
    *((TEXT, "logprobs", value) for value in ("0", "20")),
    *((CHAT, "top_logprobs", value) for value in ("0", "20")),
    *((TEXT, "temperature", value) for value in ("0", "2", "0.0", "1e-300")),
    *((TEXT, "top_p", value) for value in ("1", "1e-9")),
    *((TEXT, "top_k", value) for value in ("-1", "0", "1", "4194304")),
    *((TEXT, "seed", value) for value in (f"{2**63 - 1}", f"{-(2**63)}", "0")),
    (TEXT, "logit_bias", f'{{"0": -100, "{VOCABULARY - 1}": 100}}'),
    (TEXT, "logit_bias", "{}"),
    (TEXT, "stop", json.dumps(["x" * 256] * 16)),
    (TEXT, "stop", "[]"),
    (TEXT, "stop", "null"),
    (TEXT, "prompt", f"[{VOCABULARY - 1}]"),
    (TEXT, "prompt", "[[0]]"),
    (TEXT, "prompt", json.dumps(["a"] * 128)),
    (TEXT, "prompt", json.dumps([5] * (CONTEXT - 2))),
    (TEXT, "presence_penalty", "-2"),
    (TEXT, "repetition_penalty", "100"),
    (TEXT, "metadata", "[" * 60 + "]" * 60),
    (TEXT, "user", json.dumps("x" * 1000)),
    (CHAT, "messages", '[{"role": "user", "content": null}]'),
]


@pytest.mark.parametrize(("route", "field", "value"), AT_THE_LIMIT, ids=_name)
def test_a_value_at_its_limit_works(client: httpx.Client, route: str, field: str, value: str) -> None:
    response = client.post(route, content=raw(route, field, value), headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text[:500]
    assert response.json()["choices"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "hi", "temperature": NaN}',
        b'{"prompt": "hi", "temperature": -Infinity}',
        b'{"prompt": "hi", "temperature": 1e400}',
        b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b', "prompt": "hi"}',
        b'{"metadata": ' + b"[" * 64 + b"]" * 64 + b', "prompt": "hi"}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "hi", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "hi"',
        b'["prompt"]',
        b"null",
        b"",
    ],
    ids=lambda body: _name(body[:24]),
)
def test_what_is_not_strict_json_is_refused(client: httpx.Client, body: bytes) -> None:
    check_refusal(client.post(TEXT, content=body, headers={"Content-Type": "application/json"}), (400,))


def endless(size: int) -> Iterator[bytes]:
    """A body with a text of so many bytes, never held as a whole."""
    yield b'{"max_tokens": 1, "prompt": "'
    for _ in range(size >> 16):
        yield b"word " * (2**16 // 5)
    yield b'"}'


@pytest.mark.parametrize("size", [20 << 20, 100 << 20], ids=["20MB", "100MB"])
def test_a_body_too_large_is_refused_before_it_is_held(client: httpx.Client, size: int) -> None:
    try:
        response = client.post(TEXT, content=endless(size), headers={"Content-Type": "application/json"})
        check_refusal(response, (413,))
    except httpx.WriteError:
        pass  # closed while we still sent


@pytest.mark.parametrize("length", ["-5", "abc", "5, 6", "99999999999999999999", "1" * 5000])
def test_a_wrong_content_length_is_refused(server: Serving, length: str) -> None:
    assert _answer_to(server, length, b'{"prompt": "hi"}').split()[1:2] in ([b"400"], [b"413"])


@pytest.mark.parametrize(("length", "status"), [("3", b"400"), ("500", b""), ("16", b"200")])
def test_a_body_of_another_length_than_announced_disturbs_nobody(
    server: Serving, client: httpx.Client, length: str, status: bytes
) -> None:
    """Longer: it is cut, and the rest is no request. Shorter: nobody waits for more of a client that left."""
    answer = _answer_to(server, length, b'{"prompt": "hi"}', leaves=length == "500")
    assert answer.split()[1:2] == ([status] if status else [])
    assert client.post(TEXT, json={"prompt": "hi", "max_tokens": 1}).status_code == 200


def test_the_server_is_alive_after_all_of_it(server: Serving, client: httpx.Client) -> None:
    for route, field, value in BEYOND[::5]:
        client.post(route, content=raw(route, field, value), headers={"Content-Type": "application/json"})
    assert client.get("/health").status_code == 200
    assert client.post(TEXT, json={"prompt": "hi", "max_tokens": 2}).json()["usage"]["completion_tokens"] >= 1
    server.engine.check()


def _answer_to(server: Serving, length: str, body: bytes, *, leaves: bool = False) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as sock:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}"
        sock.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        if leaves:
            sock.shutdown(socket.SHUT_WR)
        return sock.recv(4096)


def _memory(what: str) -> int:
    """Bytes of this process, in which the server runs too."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) << 10
