"""The requests that engines are compared on: as the issue of a comparison names them, and the same for everybody."""

import json
from pathlib import Path

import pytest

from kvpager.bench.workload_lengths import Turn, azure_lengths, conversation_lengths, conversations_of
from kvpager.bench.workloads import LONGEST, NAMES, SYSTEM_TOKENS, Workload, as_json, from_json, workload
from kvpager.errors import ConfigError
from kvpager.simulator.readers import read_trace


@pytest.fixture(scope="module")
def loads() -> dict[str, Workload]:
    return {name: workload(name) for name in NAMES}


@pytest.mark.parametrize(
    ("name", "requests", "prompt", "answer"),
    [("1x128", 1, 128, 128), ("32x128", 32, 128, 128), ("128x128", 128, 128, 128), ("16x2048", 16, 2048, 64)],
)
def test_alike_requests(loads: dict[str, Workload], name: str, requests: int, prompt: int, answer: int) -> None:
    asks = loads[name].asks
    assert len(asks) == requests
    assert {(len(ask.prompt), ask.max_tokens) for ask in asks} == {(prompt, answer)}
    assert len({ask.prompt[:16] for ask in asks}) == requests  # nothing is shared


def test_short_questions_share_one_system_prompt(loads: dict[str, Workload]) -> None:
    asks = loads["shared_prefix"].asks
    assert len(asks) == 64
    assert len({ask.prompt[:SYSTEM_TOKENS] for ask in asks}) == 1
    questions = [ask.prompt[SYSTEM_TOKENS:] for ask in asks]
    assert len(set(questions)) == 64
    assert sum(map(len, questions)) / 64 == pytest.approx(32, abs=1)
    (before,) = loads["shared_prefix"].before
    assert (before.prompt, before.max_tokens) == (asks[0].prompt[:SYSTEM_TOKENS], 1)
    assert all(not load.before for name, load in loads.items() if name != "shared_prefix")


def test_a_turn_continues_the_one_before(loads: dict[str, Workload]) -> None:
    load = loads["conversations"]
    assert load.is_timed
    assert [ask.at for ask in load.asks] == sorted(ask.at for ask in load.asks)
    assert load.asks[0].at == 0
    earlier = {}
    for ask in load.asks:
        assert ask.turn == (0 if ask.conversation not in earlier else earlier[ask.conversation].turn + 1)
        if ask.turn:
            before = earlier[ask.conversation]
            assert ask.prompt[: len(before.prompt)] == before.prompt
            assert len(ask.prompt) > len(before.prompt) + before.max_tokens
        earlier[ask.conversation] = ask
    assert len(earlier) == 32
    assert min(ask.turn for ask in earlier.values()) >= 1


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.15])
def test_conversations_come_twice_as_fast_as_the_best_peer_serves_them(scale: float) -> None:
    asks = workload("conversations", scale=scale).asks
    last: dict[int | None, int] = {}
    for ask in asks:
        last[ask.conversation] = len(ask.prompt)  # all of a conversation is in its last prompt
    served = sum(last.values()) / 2450 + sum(ask.max_tokens for ask in asks) / 640
    assert asks[-1].at == pytest.approx(served / 2)


def test_azure_has_200_lengths(loads: dict[str, Workload]) -> None:
    asks = loads["azure"].asks
    assert len(asks) == len(azure_lengths()) == 200
    assert len({len(ask.prompt) for ask in asks}) > 100
    assert not loads["azure"].is_timed


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_plain_and_fit(loads: dict[str, Workload], name: str) -> None:
    for ask in loads[name].asks:
        assert 17 <= min(ask.prompt) <= max(ask.prompt) < 49152  # SmolLM2's special tokens are the first 17
        assert len(ask.prompt) + ask.max_tokens <= LONGEST
    small = workload(name, vocab=64, scale=0.05)
    assert all(0 < min(ask.prompt) <= max(ask.prompt) < 63 for ask in small.asks)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_makes_the_same_again_also_through_json(loads: dict[str, Workload], name: str) -> None:
    assert workload(name) == loads[name] == from_json(json.loads(json.dumps(as_json(loads[name]))))
    assert workload(name, seed=1).asks[0].prompt != loads[name].asks[0].prompt


@pytest.mark.parametrize("name", NAMES)
def test_a_scale_takes_fewer_requests_of_the_same_lengths(loads: dict[str, Workload], name: str) -> None:
    fewer = workload(name, scale=0.1)
    whole = {(len(ask.prompt), ask.max_tokens) for ask in loads[name].asks}
    assert 1 <= len(fewer.asks) <= max(1, len(loads[name].asks) / 4)
    assert {(len(ask.prompt), ask.max_tokens) for ask in fewer.asks} <= whole


_PAGE = 512


def _mooncake(folder: Path) -> Path:
    """Two conversations side by side, one of three turns, and a request that only shares their first page."""
    chains = [(0, [0, 1]), (3, [0, 2, 3]), (6, [0, 1, 4]), (9, [0, 5]), (12, [0, 2, 3, 6]), (15, [0, 1, 4, 7])]
    file = folder / "conversation_trace.jsonl"
    file.write_text(
        "".join(
            json.dumps(
                {"timestamp": 1000 * at, "input_length": _PAGE * len(ids), "output_length": 100, "hash_ids": ids}
            )
            + "\n"
            for at, ids in chains
        )
    )
    return file


def test_conversations_are_found_in_a_trace(tmp_path: Path) -> None:
    first = (Turn(0, 1024, 100), Turn(6, 1536, 100), Turn(15, 2048, 100))
    second = (Turn(3, 1536, 100), Turn(12, 2048, 100))
    assert conversations_of(read_trace(_mooncake(tmp_path))) == [first, second]
    assert conversation_lengths(tmp_path) == [first, second]
    assert [(ask.conversation, ask.turn) for ask in workload("conversations", traces=tmp_path).asks] == [
        *((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
    ]


def test_azure_lengths_of_a_folder(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:17:03.9799600,{prompt},10\n" for prompt in (4808, 0, 110))
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    assert azure_lengths(tmp_path) == [(4808, 10), (110, 10)]
    assert [len(ask.prompt) for ask in workload("azure", traces=tmp_path).asks] == [2795, 63]


def test_wrong_calls_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown workload '2x2'; there are 1x128"):
        workload("2x2")
    with pytest.raises(ConfigError, match="scale must be above 0 and at most 1, not 0"):
        workload("1x128", scale=0)
    with pytest.raises(ConfigError, match="vocabulary of 64"):
        workload("1x128", vocab=10)
    with pytest.raises(ConfigError, match=r"has no file \*conversation_trace\*"):
        workload("conversations", traces=tmp_path)
    with pytest.raises(ConfigError, match="is no folder"):
        workload("azure", traces=tmp_path / "missing")
