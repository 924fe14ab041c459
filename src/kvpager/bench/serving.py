"""What serving over HTTP costs: the same requests through the engine and through a server, in turn.

The server is a process of its own, as users run it; the client shares the two of them's cores, and says how much
processor time it took. Checked before anything is timed: every answer has all its tokens.
"""

import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvpager.bench.http_streams import Load, stream_all
from kvpager.bench.interleaved import measure_in_turn
from kvpager.bench.report import SEED, Result, report
from kvpager.config import Options
from kvpager.engine.engine import Engine
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import InvariantError
from kvpager.prefix.hashing import Scope

THROUGHPUT_SHARE = 0.95
HEALTH_P99_SECONDS = 0.05
_MODEL = "smollm2"
_STREAMS = 64
_CAPACITY = "1GiB"
_START_SECONDS = 120.0


def run(quick: bool = False) -> dict[str, object]:
    prompt, tokens, rounds = (16, 32, 2) if quick else (64, 64, 4)
    case = _Case(prompt, tokens)
    with _server() as port, Engine(_MODEL, options=Options(model=_MODEL, capacity=_CAPACITY)) as engine:
        case.check(engine, port)
        times = measure_in_turn([lambda: case.offline(engine), lambda: case.served(port)], 0.0, rounds)
        pings = sorted(case.health_beside(port))
    generated = _STREAMS * tokens
    return report(
        "serving",
        [
            times.ratio(0, 1).result("serving_throughput_share", at_least=THROUGHPUT_SHARE),
            Result("offline_tokens_per_second", generated / times.median(0), "tokens/s"),
            Result("served_tokens_per_second", generated / times.median(1), "tokens/s"),
            Result("health_p99_ms", 1e3 * pings[int(0.99 * len(pings))], "ms", at_most=1e3 * HEALTH_P99_SECONDS),
            Result("health_p50_ms", 1e3 * statistics.median(pings), "ms"),
            Result("client_share", statistics.median(x.client_seconds / x.seconds for x in case.loads), "cores"),
            Result("equal_answers_share", case.equal_share, "share"),
        ],
        f"SmolLM2, {_STREAMS} streams of {prompt} + {tokens} tokens",
        checks=["every answer has all its tokens"],
    )


class _Case:
    """Each round has a salt of its own, so that no prompt is found in a cache."""

    def __init__(self, prompt: int, tokens: int) -> None:
        self._tokens = tokens
        random = np.random.default_rng(SEED)
        self._prompts = random.integers(1000, 40_000, (_STREAMS, prompt)).tolist()
        self._rounds = 0
        self.loads: list[Load] = []
        self.equal_share = 0.0

    def check(self, engine: Engine, port: int) -> None:
        """Both give every token. Also warms both up."""
        offline = self._offline(engine)
        served = self._served(port)
        self.equal_share = statistics.mean(a == b.text for a, b in zip(offline, served.answers, strict=True))

    def offline(self, engine: Engine) -> float:
        begin = time.perf_counter()
        self._offline(engine)
        return time.perf_counter() - begin

    def _offline(self, engine: Engine) -> list[str]:
        self._rounds += 1
        sampling = Sampling(max_tokens=self._tokens, ignore_eos=True)
        prompts = [array("i", prompt) for prompt in self._prompts]
        done = sorted(engine.generate(prompts, sampling, scope=Scope(str(self._rounds))), key=lambda one: one.index)
        if any(len(one.token_ids) != self._tokens for one in done):
            raise InvariantError("an answer lacks tokens; nothing was timed")
        return [one.text for one in done]

    def served(self, port: int) -> float:
        load = self._served(port)
        self.loads.append(load)
        return load.seconds

    def health_beside(self, port: int) -> tuple[float, ...]:
        """Seconds that /health takes while all stream, in a run of its own: asking slows what is measured."""
        return self._served(port, ping=True).pings

    def _served(self, port: int, *, ping: bool = False) -> Load:
        self._rounds += 1
        fixed = {"max_tokens": self._tokens, "temperature": 0, "ignore_eos": True, "cache_salt": str(self._rounds)}
        return stream_all(port, [{"prompt": prompt, **fixed} for prompt in self._prompts], ping=ping)


@contextmanager
def _server() -> Iterator[int]:
    """``kvpager serve`` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "kvpager.cli.main", "serve", _MODEL, "--port", str(port), "--capacity", _CAPACITY]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(60)


def _wait_until_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    stop_at = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < stop_at:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the server does not start; run kvpager serve smollm2 to see why")
