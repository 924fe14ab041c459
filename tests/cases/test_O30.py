"""Open case O-30: a part of the server dies or hangs, it is told to end, or it is sent bytes that are no HTTP.

There is one process: what corresponds to killing the engine is an error that ends its thread.
"""

import pickle
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from kvpager.config import DiskTier, Options, ServerOptions
from kvpager.engine.engine import Engine
from kvpager.errors import InvariantError
from tests.cli.tiny_model import save_tiny_model
from tests.server.processes import Process, listening, resident_bytes, serve_process, wait_until
from tests.server.raw_client import RawClient
from tests.server.serving import Serving, serving
from tests.server.threads import Gate, GateWhen, RaiseOnce, held_steps

STREAMS = 8
SECONDS = 5  # within which all clients must know
SLACK = 30  # on a machine that has other things to do
LONG = {"max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}
ENDLESS = {**LONG, "prompt": [f"prompt {number}" for number in range(16)], "n": 16}  # ten times what a test waits for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


class Streams:
    """Clients that stream. ``texts``: what each has read, once it has ended."""

    def __init__(self, url: str, pool: ThreadPoolExecutor, count: int = STREAMS) -> None:
        self._url = url
        self._begun: list[str] = []
        self._ends: list[Future[str]] = [pool.submit(self._read, f"client {number}") for number in range(count)]
        stop_at = time.monotonic() + 60
        while len(self._begun) < count:
            for end in self._ends:
                assert not end.done() or end.exception() is None, end.exception()
            assert time.monotonic() < stop_at, "they did not begin"
            time.sleep(0.005)

    def _read(self, prompt: str) -> str:
        text, has_begun = "", False
        with httpx.stream("POST", self._url + "/v1/completions", json={"prompt": prompt, **LONG}, timeout=120) as got:
            assert got.status_code == 200
            for part in got.iter_text():
                text += part
                if not has_begun and "data:" in text:
                    has_begun = True
                    self._begun.append(prompt)
        return text

    def texts(self, seconds: float) -> list[str]:
        stop_at = time.monotonic() + seconds
        return [end.result(max(0.0, stop_at - time.monotonic())) for end in self._ends]


@contextmanager
def streaming(model: str, **server: object) -> Iterator[tuple[Serving, Streams, Gate]]:
    """The gate holds the engine while every stream has begun and none has ended."""
    options = ServerOptions(port=0, **server)  # type: ignore[arg-type]
    with ThreadPoolExecutor(STREAMS) as pool, serving(model, num_blocks=1024, server=options) as running:
        gate = GateWhen(
            lambda engine: (
                len(engine.branches()) == STREAMS and all(len(branch.output) >= 20 for branch in engine.branches())
            )
        )
        running.service.thread.before_turn = gate
        with held_steps(running.engine, lambda engine: engine.num_waiting + len(engine.branches()) < STREAMS):
            streams = Streams(running.url, pool)
            assert gate.is_reached.wait(60)
        try:
            yield running, streams, gate
        finally:
            gate.open()


def _end_of_body(server: Serving) -> httpx.Response:
    return httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=60)


# -- (a), (b) the engine dies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [InvariantError, ValueError])
def test_the_engine_dies(model: str, kind: type[Exception]) -> None:
    with streaming(model) as (server, streams, gate):
        assert httpx.get(server.url + "/health", timeout=60).status_code == 200  # control
        server.service.thread.before_turn = RaiseOnce(kind("a secret"))
        gate.open()
        texts = streams.texts(SECONDS * SLACK)
        assert all('"error"' in text and "[DONE]" not in text for text in texts)
        assert not any("secret" in text for text in texts)
        ready = httpx.get(server.url + "/ready", timeout=60)
        assert (ready.status_code, ready.json()["status"]) == (503, "failed")
        assert httpx.get(server.url + "/health", timeout=60).status_code == 503
        begin = time.monotonic()
        refused = _end_of_body(server)
        assert time.monotonic() - begin < SLACK
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) >= 1


# -- (c) the engine hangs ------------------------------------------------------------------------------------------


def test_the_engine_hangs_and_comes_back(model: str) -> None:
    with streaming(model, stall_seconds=600) as (server, streams, gate):
        assert httpx.get(server.url + "/ready", timeout=60).status_code == 200  # control
        thread = server.service.thread
        try:
            thread._side.heartbeat -= 2 * 600
            stalled = httpx.get(server.url + "/ready", timeout=60)
            assert stalled.status_code == 503
            assert stalled.json()["status"] == "stalled"
            assert httpx.get(server.url + "/health", timeout=60).status_code == 200  # it may come back
            refused = _end_of_body(server)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            thread._side.heartbeat -= 5 * 600
            assert httpx.get(server.url + "/health", timeout=60).status_code == 503  # it is high time now
        finally:
            gate.open()
        assert all(text.rstrip().endswith("[DONE]") for text in streams.texts(150))
        wait_until(server.url, 200)
        assert _end_of_body(server).status_code == 200


# -- (d) signals ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_signal_drains(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700)
    small = ("--capacity", "2MiB", "--page-size", "4", "--tier", f"disk={folder},size=64MiB")
    with serve_process(model, *small) as (process, url), ThreadPoolExecutor(STREAMS) as pool:
        streams = Streams(url, pool)
        with RawClient(url) as client:
            client.post("/v1/completions", ENDLESS)
            client.read(until=b"data:")
            process.send(signal.SIGTERM)
            process.wait_for("stopping: ")
            refused = httpx.post(url + "/v1/completions", json={"prompt": "x"}, timeout=60)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
            assert httpx.get(url + "/ready", timeout=60).json()["status"] == "draining"
        texts = streams.texts(150)
        assert all(text.rstrip().endswith("[DONE]") for text in texts)
        assert process.ended(60) == 0, process.err
        assert "Traceback" not in process.err
    with Engine(model, options=Options(model=model, page_size=4, tiers=(DiskTier(folder, "64MiB"),))) as engine:
        assert engine.cache.lower is not None
        assert engine.cache.lower.migration.tiers[0].usage().cached > 0  # what was computed outlived the process
        engine.check()


@pytest.mark.slow
def test_bytes_that_are_no_http_and_a_second_signal(model: str, tmp_path: Path) -> None:
    with serve_process(model, "--capacity", "4MiB", "--drain-seconds", "600") as (process, url):
        _send_what_is_no_http(process, url, tmp_path / "marker")
        client = RawClient(url)
        client.post("/v1/completions", ENDLESS)
        client.read(until=b"data:")
        process.send(signal.SIGTERM)
        process.wait_for("stopping: ")
        process.send(signal.SIGTERM)
        assert process.ended(60) == -signal.SIGTERM
        assert b"[DONE]" not in client.read(most=1 << 30)  # it was cut off
        client.close()


# -- (e) bytes that are no HTTP ------------------------------------------------------------------------------------


class Evil:
    """A pickle that leaves a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self._marker,)


def _send_what_is_no_http(process: Process, url: str, marker: Path) -> None:
    sockets = listening(process.pid)
    assert [address for address, _ in sockets] == ["0100007F"]  # 127.0.0.1, and nothing else listens
    assert sockets[0][1] == int(url.rsplit(":", 1)[1])
    before = resident_bytes(process.pid)
    contents = (
        (pickle.dumps(Evil(marker)), 1),
        (bytes(1 << 20), 64),
        (random.Random(30).randbytes(1 << 20), 16),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 20), 16),
    )
    for content, times in contents:
        with RawClient(url) as client:
            try:
                for _ in range(times):
                    client.send(content)
                client.send(b"\r\n\r\n")
            except ConnectionError:
                pass  # closed already: good
            assert client.read().startswith((b"HTTP/1.1 4", b""))
    assert not marker.exists()
    assert resident_bytes(process.pid) - before < 64 << 20
    assert httpx.get(url + "/ready", timeout=60).status_code == 200
    pickle.loads(contents[0][0])  # noqa: S301 (the control: it does leave a file where it is read)
    assert marker.exists()
