"""Many clients at once: what the server still answers meanwhile, and what is left of them afterwards.

Single refusals and disconnects are in tests/cases/test_O29.py.
"""

import asyncio
import itertools
import random
import threading
import time
from collections import Counter

import httpx
import pytest

from kvpager.engine.engine import Engine
from tests.cases.test_O29 import wait_for_rest
from tests.server.raw_client import RawClient
from tests.server.serving import serving

BODY = {"prompt": "the moon", "temperature": 0, "stream": True, "ignore_eos": True}


async def _stream(client: httpx.AsyncClient, body: dict[str, object], stop_after: int | None = None) -> str:
    """How it ended, in a word. ``stop_after``: chunks after which the client goes."""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            assert response.headers["retry-after"]
            return str(response.status_code)
        chunks, ends = 0, ""
        async for line in response.aiter_lines():
            chunks += line.startswith("data: {")
            ends = line or ends
            if chunks == stop_after:
                return "gone"
        return "done" if ends == "data: [DONE]" else "cut"


def test_health_is_answered_while_many_stream(model: str) -> None:
    """Before each of its turns the engine waits for a new answer, so that no answer comes after the streams have ended.
    How long one takes, benchmarks say: this process has the clients as well, and a machine does other things."""
    answers = threading.Semaphore(0)

    def wait_for_an_answer(engine: Engine) -> None:
        if engine.has_work:
            assert answers.acquire(timeout=60)

    async def body(url: str) -> int:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
            streams = [asyncio.create_task(_stream(client, {**BODY, "max_tokens": 15})) for _ in range(64)]
            count = 0
            while not all(stream.done() for stream in streams):
                assert (await client.get("/health")).status_code == 200
                answers.release()
                count += 1
            assert {stream.result() for stream in streams} == {"done"}
            return count

    with serving(model, num_blocks=1024) as server:
        server.service.thread.before_turn = wait_for_an_answer
        assert asyncio.run(body(server.url)) >= 15
        server.service.thread.before_turn = None
        wait_for_rest(server)


@pytest.mark.parametrize(
    ("clients", "rounds", "seconds"),
    [(40, 5, 0.0), pytest.param(200, 5, 60.0, marks=pytest.mark.heavy)],
    ids=["small", "as-specified"],
)
def test_clients_that_come_and_go_at_random(model: str, clients: int, rounds: int, seconds: float) -> None:
    """Ten times as many as may run and wait: each is answered or refused, and the server stays ready. Each asks so
    often, however long that takes, and goes on for the rest of the time."""

    async def one(client: httpx.AsyncClient, seed: int, stop_at: float, ends: Counter[str]) -> None:
        chance = random.Random(seed)
        for round_ in itertools.count():
            if round_ >= rounds and time.monotonic() >= stop_at:
                return
            goes = chance.choice([None, 1, 2, 5])
            body = {**BODY, "prompt": [chance.randrange(2, 300) for _ in range(chance.randrange(1, 60))]}
            ends[await _stream(client, {**body, "max_tokens": chance.randrange(1, 40)}, goes)] += 1

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            assert (await client.get("/ready")).status_code == 200
            await asyncio.sleep(0.1)

    async def body(url: str) -> Counter[str]:
        ends: Counter[str] = Counter()
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as client:
            stop_at = time.monotonic() + seconds
            watching = asyncio.create_task(watch(client))
            all_of_them = asyncio.gather(*(one(client, seed, stop_at, ends) for seed in range(clients)))
            await asyncio.wait((watching, all_of_them), return_when=asyncio.FIRST_COMPLETED)
            assert not watching.done(), watching.exception()
            watching.cancel()
            await all_of_them
        return ends

    with serving(model, num_blocks=128, max_running=clients // 20, max_waiting=clients // 20) as server:
        ends = asyncio.run(body(server.url))
        assert set(ends) <= {"done", "gone", "429"}, ends  # none was cut off or is still waiting
        assert ends.total() >= clients * rounds
        assert ends["done"] + ends["gone"] > 0, ends
        wait_for_rest(server)


def test_who_does_not_read_holds_nobody_up(model: str) -> None:
    with serving(model, num_blocks=1024) as server, RawClient(server.url) as deaf:
        deaf.post("/v1/completions", {**BODY, "max_tokens": 400, "n": 8})
        for _ in range(3):
            response = httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 4}, timeout=60)
            assert response.status_code == 200
        deaf.close()
        wait_for_rest(server)
