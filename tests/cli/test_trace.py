"""``kvpager trace``: records while a command answers, says what is in a trace, and converts one."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvpager.simulator.readers import read_trace

Call = Callable[..., object]
COMMON = ("--page-size", "4", "--max-tokens", "2", "--raw")
TEXT = "a page table maps each page to a block"


def mooncake(path: Path, *requests: tuple[int, list[int], int]) -> str:
    """``requests``: milliseconds, ids, tokens."""
    lines = [
        json.dumps({"timestamp": at, "input_length": tokens, "output_length": 10, "hash_ids": ids})
        for at, ids, tokens in requests
    ]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return mooncake(
        tmp_path / "m.jsonl", (0, [0, 1], 1024), (3000, [0, 1, 2], 1100), (6000, [0, 3], 900), (9000, [7], 512)
    )


# -- record ---------------------------------------------------------------------------------------------------------


def test_a_command_is_recorded_and_its_output_stays_its_own(kvpager: Call, model: str, tmp_path: Path) -> None:
    path = str(tmp_path / "r.jsonl")
    prompts = [f"{TEXT} and", f"{TEXT} or"]
    command = ("run", "--json", "--model", model, *COMMON, *prompts)
    alone = kvpager(*command)
    recorded = kvpager("trace", "record", path, "--", *command)
    assert recorded.code == 0, recorded.err
    assert sorted(recorded.out.splitlines()) == sorted(alone.out.splitlines())
    assert f"2 requests recorded in {path}" in recorded.err
    trace = read_trace(path)
    assert trace.output_tokens.tolist() == [2, 2]
    assert trace.num_blocks < trace.num_references  # the prompts begin alike
    content = Path(path).read_text()
    assert "table" not in content
    shown = kvpager("trace", "info", path)
    assert "2 requests" in shown.out


def test_a_chat_is_recorded_by_its_option_and_its_answers_end_turns(
    kvpager: Call, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nand again\n"))
    path = str(tmp_path / "r.jsonl")
    ended = kvpager("chat", "--json", "--model", model, "--page-size", "4", "--max-tokens", "2", "--record", path)
    assert ended.code == 0, ended.err
    facts = json.loads(kvpager("trace", "info", path, "--json").out)
    assert facts["stops"] == {"unknown": 0, "tool_call": 0, "end_of_turn": 2}
    assert facts["reused"] > 0.3  # the second turn sends the first


def test_nothing_is_overwritten_and_a_wrong_call_leaves_no_file(kvpager: Call, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for argv, message in [
        (("record", str(path)), "write it behind --"),
        (("record", str(path), "--", "rnu", "x"), "did you mean 'run'?"),
        (("record", str(path), "--", "doctor"), "doesn't know '--record'"),
    ]:
        ended = kvpager("trace", *argv)
        assert ended.code == 2
        assert message in ended.err
        assert not path.exists()
    path.write_text("mine")
    ended = kvpager("trace", "record", str(path), "--", "run", "x")
    assert ended.code == 2
    assert "never overwritten" in ended.err
    assert path.read_text() == "mine"


# -- info -----------------------------------------------------------------------------------------------------------


def test_info_counts_what_is_there_and_what_comes_again(kvpager: Call, small: str) -> None:
    facts = json.loads(kvpager("trace", "info", small, "--json").out)
    assert facts == {
        "name": "m.jsonl",
        "requests": 4,
        "seconds": 9.0,
        "page_tokens": 512,
        "references": 8,
        "blocks": 5,
        "reused": (1024 + 512) / (1024 + 1100 + 900 + 512),
        "input_tokens": 3536,
        "output_tokens": 40,
        "partial_tails": 2,
        "stops": {"unknown": 4, "tool_call": 0, "end_of_turn": 0},
        "skipped_lines": 0,
    }
    shown = kvpager("trace", "info", small).out
    assert "4 requests in 9 seconds" in shown
    assert "43.4% of the prompt tokens" in shown


def test_damaged_lines_are_named_and_left_out_only_when_asked(kvpager: Call, small: str) -> None:
    with Path(small).open("a") as file:
        file.write("\n{broken\n")
    ended = kvpager("trace", "info", small)
    assert ended.code == 2
    assert "line 5 is damaged" in ended.err
    ended = kvpager("trace", "info", small, "--skip-bad")
    assert ended.code == 0
    assert "1 lines, left out" in ended.out


# -- convert --------------------------------------------------------------------------------------------------------


def test_a_converted_trace_is_the_same_trace(kvpager: Call, small: str, tmp_path: Path) -> None:
    target = str(tmp_path / "own.jsonl")
    assert (
        kvpager("trace", "convert", small, target, "--json").out == json.dumps({"path": target, "requests": 4}) + "\n"
    )
    before, after = read_trace(small), read_trace(target)
    for name in ("first", "pages", "parent", "times", "input_tokens", "output_tokens", "stop", "has_partial_tail"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    ended = kvpager("trace", "convert", small, target)
    assert ended.code == 2
    assert "exists already" in ended.err
    assert read_trace(target).num_requests == 4
    wide = str(tmp_path / "wide.jsonl")
    assert kvpager("trace", "convert", small, wide, "--page-tokens", "1024").code == 0
    assert read_trace(wide).page_tokens == 1024


def test_a_conversion_that_fails_leaves_nothing(kvpager: Call, small: str, tmp_path: Path) -> None:
    target = tmp_path / "own.jsonl"
    arrivals = tmp_path / "a.csv"
    arrivals.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    ended = kvpager("trace", "convert", str(arrivals), str(target))
    assert ended.code == 2
    assert "not what they read" in ended.err
    assert not target.exists()
    unfit = mooncake(tmp_path / "u.jsonl", (0, [0], 512), (1, [0, 1], 9000))  # more tokens than its pages
    ended = kvpager("trace", "convert", unfit, str(target))
    assert not target.exists()
    assert ended.code == 2


@pytest.mark.parametrize("argv", [("infro", "f"), ("info", "f", "g"), ("convert", "f")])
def test_a_call_that_makes_no_sense_is_refused(kvpager: Call, argv: tuple[str, ...]) -> None:
    ended = kvpager("trace", *argv)
    assert ended.code == 2
    assert "did you mean 'info'?" in ended.err or "see kvpager trace --help" in ended.err
