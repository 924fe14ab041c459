"""A lean client for load: many streamed completions at once over plain sockets, and questions after the health beside.

Reads server-sent events and looks no closer than it must, since it shares the cores with the server it measures.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DONE = b"data: [DONE]"
_DATA = b"data: "
_PING_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer: its ``text``, and when its first and last piece came, seconds since it was asked."""

    text: str
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Load:
    """``seconds`` until the last answer had come; ``client_seconds``: processor time of this client meanwhile.
    ``pings``: seconds that /health took, each."""

    answers: tuple[Streamed, ...]
    seconds: float
    client_seconds: float
    pings: tuple[float, ...]


def stream_all(port: int, bodies: Sequence[dict[str, Any]], *, ping: bool = False) -> Load:
    """Asks all at once for /v1/completions, and ``ping``: for /health fifty times a second meanwhile, which takes a few
    per cent of a core. Raises RuntimeError for an answer that is none."""
    return asyncio.run(_stream_all(port, bodies, ping))


async def _stream_all(port: int, bodies: Sequence[dict[str, Any]], ping: bool) -> Load:
    begin, spent = time.perf_counter(), time.thread_time()
    stop = asyncio.Event()
    if not ping:
        stop.set()
    pings = asyncio.create_task(_ping(port, stop))
    answers = await asyncio.gather(*(_stream(port, body) for body in bodies))
    seconds, spent = time.perf_counter() - begin, time.thread_time() - spent
    stop.set()
    return Load(tuple(answers), seconds, spent, tuple(await pings))


async def _stream(port: int, body: dict[str, Any]) -> Streamed:
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_post("/v1/completions", json.dumps({**body, "stream": True}).encode()))
    first = 0.0
    pieces: list[bytes] = []
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the server answers {status.decode().strip()!r}: {(await reader.read(2000)).decode()}")
        while line := await reader.readline():
            if line.startswith(_DONE):
                last = time.perf_counter() - begin
                return Streamed("".join(_text(piece) for piece in pieces), first, last)
            if line.startswith(_DATA):
                first = first or time.perf_counter() - begin
                pieces.append(line)
    finally:
        writer.close()
    raise RuntimeError("a stream ended without [DONE]")


def _text(piece: bytes) -> str:
    choices = json.loads(piece.removeprefix(_DATA))["choices"]
    return "".join(choice["text"] for choice in choices)


def _post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


async def _ping(port: int, stop: asyncio.Event) -> list[float]:
    """How long /health takes, again and again on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    while not stop.is_set():
        begin = time.perf_counter()
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        taken.append(time.perf_counter() - begin)
        await asyncio.sleep(_PING_SECONDS)
    writer.close()
    return taken
