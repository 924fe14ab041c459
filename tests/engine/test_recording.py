"""A running engine records what it is asked; the recording, replayed, hits what the engine hit. Hashes only."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvpager.engine import Completion, Engine, Sampling, StopReason
from kvpager.errors import ConfigError
from kvpager.prefix.hashing import Scope
from kvpager.simulator.lru_path import replay_lru
from kvpager.simulator.readers import read_trace
from kvpager.simulator.replay_cache import LevelPlan, SimulatedCache
from kvpager.simulator.trace import Trace
from tests.engine.engines import assert_idle, force_preemption
from tests.tiny_model import tiny_model

PAGE = 4
PROMPT = list(range(100, 110))  # two pages and a half
ONE = Sampling(max_tokens=1)


def open_engine(path: Path | None, **options: Any) -> Engine:
    record = None if path is None else str(path)
    return Engine(tiny_model(), **{"num_blocks": 64, "page_size": PAGE, "record": record, **options})


def run(engine: Engine, prompt: list[int], sampling: Sampling = ONE, **options: Any) -> Completion:
    request = engine.submit(prompt, sampling, **options)
    while not request.is_finished:
        engine.step()
    return request.completions()[0]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def pages_of(line: dict[str, Any]) -> list[str]:
    return [line["pages"][at : at + 16] for at in range(0, len(line["pages"]), 16)]


# -- what is written ------------------------------------------------------------------------------------------------


def test_a_line_says_what_a_request_read_and_how_it_went(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_engine(path, ended=lambda done: StopReason.TOOL_CALL) as engine:
        run(engine, PROMPT, Sampling(max_tokens=3))
        run(engine, [*PROMPT[:9], 1, 2, 3, 4], Sampling(max_tokens=5))
        first, second = lines_of(path)  # readable while the engine runs
    assert path.stat().st_mode & 0o777 == 0o600
    assert (first["in"], first["out"], first["matched"], first["stop"]) == (10, 3, 0, "tool_call")
    assert (second["in"], second["out"], second["matched"]) == (13, 5, 2)
    assert len(pages_of(first)) == 2  # the full ones
    assert pages_of(second)[:2] == pages_of(first)
    assert len(set(pages_of(second))) == 3
    assert 0 <= first["t"] <= second["t"]
    trace = read_trace(path)
    assert (trace.page_tokens, trace.num_requests, trace.num_blocks) == (PAGE, 2, 3)


def test_tenants_share_no_hashes_and_neither_do_two_recordings(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open_engine(tmp_path / name) as engine:
            run(engine, PROMPT)
            run(engine, PROMPT, scope=Scope(salt="tenant"))
            run(engine, PROMPT)
            keys = engine.cache.content_keys(PROMPT)
        content = (tmp_path / name).read_text()
        assert "tenant" not in content
        assert not any(key.hex()[:16] in content or key.hex()[-16:] in content for key in keys)
    one, tenant, again = lines_of(tmp_path / "a")
    assert one["pages"] == again["pages"]
    assert not set(pages_of(one)) & set(pages_of(tenant))
    assert not set(pages_of(one)) & set(pages_of(lines_of(tmp_path / "b")[0]))


def test_the_keys_are_those_of_the_cache(tmp_path: Path) -> None:
    scope = Scope(salt="s", adapter="a")
    with open_engine(None) as engine:
        run(engine, PROMPT, scope=scope)
        index = engine.cache.index
        published = {index.key(index.node_of_block(block)) for block in index.all_blocks().tolist()}
        assert set(engine.cache.content_keys(PROMPT, scope)) == published
        assert set(engine.cache.content_keys(PROMPT)).isdisjoint(published)


def test_requests_are_recorded_once_when_they_end_however_they_end(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with open_engine(path, ended=lambda done: StopReason.END_OF_TURN) as engine:
        long = engine.submit(PROMPT, Sampling(max_tokens=50))
        choices = engine.submit(list(range(9)), Sampling(max_tokens=4, n=2))
        for _ in range(3):
            engine.step()
        assert force_preemption(engine, 0)
        never_started = engine.submit(PROMPT)
        engine.cancel(never_started.id)
        while not choices.is_finished:
            engine.step()
        while len(long.branches[0].output) < 7:
            engine.step()
        engine.cancel(long.id)
    by_input = {line["in"]: line for line in lines_of(path)}
    assert len(lines_of(path)) == 2
    assert (by_input[9]["out"], by_input[9]["stop"]) == (4, "end_of_turn")
    assert (by_input[10]["out"], by_input[10]["matched"], by_input[10]["stop"]) == (7, 0, "unknown")
    assert by_input[10]["t"] <= by_input[9]["t"]  # when they came, though the other ended first


def test_closing_the_engine_records_what_was_under_way(tmp_path: Path) -> None:
    with open_engine(tmp_path / "r.jsonl") as engine:
        engine.submit(PROMPT, Sampling(max_tokens=50))
        engine.step()
    assert [line["out"] for line in lines_of(tmp_path / "r.jsonl")] == [1]


# -- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "r.jsonl"
    with open_engine(None) as engine:
        expected = run(engine, PROMPT, Sampling(max_tokens=4)).token_ids
    with caplog.at_level(logging.WARNING), open_engine(path) as engine:
        run(engine, PROMPT)
        recorder = engine._queues.recording._recorder  # type: ignore[union-attr]
        file, recorder._file = recorder._file, _Failing(recorder._file)  # type: ignore[assignment]
        for _ in range(3):
            assert run(engine, PROMPT, Sampling(max_tokens=4)).token_ids == expected
        assert_idle(engine)
        recorder._file = file
    assert len(lines_of(path)) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "the recording ended after 1 requests: No space left on device; the engine goes on without it"
    ]


class _Failing:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_file_that_exists_is_refused_and_the_model_stays_usable(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("mine")
    model = tiny_model()
    with pytest.raises(ConfigError, match="exists already"):
        Engine(model, num_blocks=8, page_size=PAGE, record=str(path))
    assert path.read_text() == "mine"
    with Engine(model, num_blocks=8, page_size=PAGE, record=path.with_name("other")) as engine:
        run(engine, PROMPT)


# -- the recording, replayed ----------------------------------------------------------------------------------------


def prompts_with_shared_prefixes(count: int, tail: int) -> list[list[int]]:
    """Documents with questions about them: full pages shared, then an own one, then ``tail`` tokens of a begun one."""
    generator = random.Random(5)
    documents = [[generator.randrange(512) for _ in range(PAGE * generator.randrange(1, 6))] for _ in range(7)]
    prompts = []
    for number in range(count):
        own = [number // 512, number % 512, *(generator.randrange(512) for _ in range(PAGE - 2 + tail))]
        prompts.append([*documents[min(generator.randrange(7), generator.randrange(7))], *own])
    return prompts


def replayed(trace: Trace, capacity: int) -> np.ndarray:
    """Hits of each request in pages under the product's own LRU; over arrays they are the same."""
    cache = SimulatedCache(trace, [LevelPlan("device", capacity, "lru")])
    for request, now in enumerate(trace.times.tolist()):
        cache.depart(request, cache.arrive(request, now), now)
    hits: np.ndarray = cache.found[0]
    assert np.array_equal(hits, replay_lru(trace, capacity).hit_pages)
    return hits


@pytest.mark.parametrize("tail", [0, 2])
def test_replayed_at_the_engines_capacity_it_hits_what_the_engine_counted(tmp_path: Path, tail: int) -> None:
    """A begun page takes a block while its request runs and is never found, so the cache has one block less then."""
    path, blocks = tmp_path / "r.jsonl", 16
    with open_engine(path, num_blocks=blocks, partial_hits=False) as engine:
        counted = [run(engine, prompt).prefix_tokens for prompt in prompts_with_shared_prefixes(60, tail)]
    trace = read_trace(path)
    hits = replayed(trace, blocks - (tail > 0))
    assert (hits * PAGE).tolist() == counted
    assert [line["matched"] for line in lines_of(path)] == hits.tolist()
    assert 0 < sum(counted) < (replayed(trace, 500) * PAGE).sum()  # some were found, and some had been dropped
    assert (replayed(trace, blocks // 2) * PAGE).tolist() != counted  # at another capacity it would not
