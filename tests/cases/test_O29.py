"""Open case O-29: more requests than may wait, and clients that go away, at every stage of a request."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from kvpager.config import DiskTier, HostTier
from kvpager.engine.engine import Engine
from kvpager.engine.request import BranchState
from kvpager.engine.sampling_params import Sampling
from tests.cli.tiny_model import save_tiny_model
from tests.engine.tiers import AlwaysLoad
from tests.server.raw_client import RawClient
from tests.server.serving import Serving, serving
from tests.server.threads import Gate, GateWhen

SECONDS = 2  # within which all holdings must be back
SLACK = 30  # on a machine that has other things to do
LONG = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


# -- (a) overload --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "clients"), [(8, 80), pytest.param(64, 640, marks=pytest.mark.heavy)], ids=["small", "as-specified"]
)
def test_a_surplus_is_refused_and_the_rest_is_answered(model: str, limit: int, clients: int) -> None:
    with serving(model, max_waiting=limit, max_running=4) as server:
        body = {"prompt": "the moon", "max_tokens": 8, "temperature": 0}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            reference = client.post("/v1/completions", json=body).json()["choices"]
        responses = asyncio.run(_flood(server.url, body, clients))
        taken = [each for each in responses if each.status_code == 200]
        refused = [each for each in responses if each.status_code == 429]
        assert len(taken) + len(refused) == clients
        assert len(taken) >= limit
        assert refused  # control: there was a surplus
        assert all(each.json()["choices"] == reference for each in taken)
        assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
        assert all(each.json()["error"]["code"] == "queue_full" for each in refused)
        begin = time.monotonic()
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/completions", json=body).json()["choices"] == reference
        assert time.monotonic() - begin < 5 * SLACK
        wait_for_rest(server)


async def _flood(url: str, body: dict[str, object], clients: int) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(clients)))


def test_a_surplus_is_refused_at_once_although_the_engine_is_in_a_long_step(model: str) -> None:
    with serving(model, max_waiting=2) as server, ThreadPoolExecutor(4) as pool:
        gate = Gate()
        server.service.thread.before_turn = gate
        body = {"prompt": "the moon", "max_tokens": 2}

        def post() -> httpx.Response:
            return httpx.post(server.url + "/v1/completions", json=body, timeout=60)

        try:
            assert gate.is_reached.wait(60)
            waiting = [pool.submit(post) for _ in range(2)]
            while server.service.thread.num_waiting < 2:
                time.sleep(0.005)
            assert post().status_code == 429  # while the gate is still closed
        finally:
            gate.open()
        assert [each.result().status_code for each in waiting] == [200, 200]


# -- (b) clients that go away --------------------------------------------------------------------------------------

_T = TypeVar("_T")
Condition = Callable[[Engine], object]


def is_queued(engine: Engine) -> bool:
    return any(not branch.output for branch in engine._queues.waiting.values())


def is_in_prefill(engine: Engine) -> bool:
    return any(
        not branch.output and 0 < branch.running_sequence.length < len(branch.request.prompt)
        for branch in engine.branches()
    )


def is_loading(engine: Engine) -> bool:
    return engine.loading.num_loading > 0


def is_decoding(engine: Engine) -> bool:
    return any(len(branch.output) >= 3 for branch in engine.branches())


def is_copying_out(engine: Engine) -> bool:
    assert engine.cache.lower is not None
    return engine.cache.lower.migration.num_open > 0 and any(branch.output for branch in engine.branches())


STAGES: dict[str, Condition] = {
    "queued": is_queued,
    "prefill": is_in_prefill,
    "load": is_loading,
    "decode": is_decoding,
    "copy-out": is_copying_out,
}


@pytest.fixture(scope="module")
def tiered(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One request runs at a time, in small pieces, over a host and a disk tier."""
    folder = tmp_path_factory.mktemp("disk") / "kv"
    folder.mkdir(mode=0o700)
    tiers = (HostTier(pages=4096), DiskTier(Path(folder), "16MiB"))
    with serving(model, num_blocks=160, max_running=1, max_batch_tokens=16, tiers=tiers) as server:
        engine = server.engine
        engine.loading.model = AlwaysLoad(engine.layout.page_size, engine.layout.block_stride)
        yield server


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("stage", STAGES)
def test_all_is_given_back_when_a_client_goes(tiered: Serving, stage: str, rounds: int, stream: bool) -> None:
    random_tokens = random.Random(f"{stage} {stream}")
    for _ in range(rounds):
        prompt = [random_tokens.randrange(2, 300) for _ in range(120)]
        if stage == "load":
            _leave_it_below(tiered, prompt)
        _go_away_in(tiered, STAGES[stage], prompt, stream, beside=stage == "queued")


def _go_away_in(server: Serving, condition: Condition, prompt: list[int], stream: bool, *, beside: bool) -> None:
    """``beside``: another request runs meanwhile, so that this one has to wait. It leaves as well."""
    thread, gate = server.service.thread, GateWhen(condition)
    body = {"prompt": prompt, "max_tokens": LONG, "stream": stream, "ignore_eos": True}
    clients = []
    try:
        if beside:
            clients.append(_connected(server, {**body, "prompt": prompt[::-1]}))
            _wait(lambda: _ask(server, lambda engine: engine.branches()), "the other one did not start")
        thread.before_turn = gate
        clients.append(_connected(server, body))
        assert gate.is_reached.wait(60), "the stage was never reached"
        for client in clients:
            client.close()
        _wait(lambda: all(answer.is_cancelled for answer in tuple(thread._answers)), "nobody noticed")
        generated = server.engine.statistics().generated_tokens  # nothing moves while the gate is closed
        begin = time.monotonic()
    finally:
        gate.open()
    wait_for_rest(server)
    assert time.monotonic() - begin < SECONDS * SLACK
    assert _ask(server, lambda engine: engine.statistics()).generated_tokens == generated
    thread.before_turn = None


def test_a_client_that_goes_before_it_has_read_the_end(tiered: Serving) -> None:
    for stream in (False, True):
        for _ in range(5):
            finished = _finished(tiered)
            client = _connected(tiered, {"prompt": "the moon", "max_tokens": 3, "stream": stream})
            _wait(lambda before=finished: _finished(tiered) > before, "it did not end")
            client.close()
            wait_for_rest(tiered)


def test_the_stages_would_keep_their_pages_if_nobody_went(tiered: Serving) -> None:
    """The control: what is held in the middle of a request is seen by what the tests above look at."""
    gate = GateWhen(is_decoding)
    tiered.service.thread.before_turn = gate
    client = _connected(tiered, {"prompt": list(range(2, 60)), "max_tokens": 20, "ignore_eos": True})
    try:
        assert gate.is_reached.wait(60)
        branch = tiered.engine.branches()[0]
        assert branch.state is BranchState.RUNNING
        assert tiered.engine.cache.pool.counts().used > 0
        assert not any(answer.is_cancelled for answer in tuple(tiered.service.thread._answers))
    finally:
        gate.open()
        tiered.service.thread.before_turn = None
    assert b"length" in client.read(until=b"length")
    client.close()
    wait_for_rest(tiered)


def _connected(server: Serving, body: dict[str, object]) -> RawClient:
    client = RawClient(server.url)
    client.post("/v1/completions", body)
    return client


def _finished(server: Serving) -> int:
    return _ask(server, lambda engine: engine.statistics()).finished_requests


def _leave_it_below(server: Serving, prompt: list[int]) -> None:
    """The pages of the prompt are in the tiers, and on the device no more."""

    def compute(engine: Engine) -> None:
        for _ in engine.generate([prompt], Sampling(max_tokens=1)):
            pass

    _ask(server, compute)
    wait_for_rest(server)
    _ask(server, lambda engine: engine.cache.clear_prefix())


def _ask(server: Serving, function: Callable[[Engine], _T]) -> _T:
    """Runs on the engine's thread, asked from a test's."""
    thread = server.service.thread
    assert thread._loop is not None
    return asyncio.run_coroutine_threadsafe(thread.call(function), thread._loop).result(60)


def _wait(condition: Callable[[], object], otherwise: str) -> None:
    stop_at = time.monotonic() + SECONDS * SLACK
    while not condition():
        assert time.monotonic() < stop_at, otherwise
        time.sleep(0.002)


def wait_for_rest(server: Serving) -> None:
    """Until nothing is mapped, held, moving or promised, and the books agree."""

    def is_at_rest(engine: Engine) -> bool:
        counts, lower = engine.cache.pool.counts(), engine.cache.lower
        is_moving = lower is not None and lower.migration.num_open
        return not (engine.has_work or counts.used or counts.moving or is_moving or engine.loading.reserved)

    _wait(lambda: _ask(server, is_at_rest), "something is held for ever")
    _ask(server, lambda engine: engine.check())
    assert server.service.thread.num_open == 0
    assert server.service.thread.num_waiting == 0
