"""``kvpager run``: what is asked, what is printed where, and what is refused before anything runs."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpager.cli import run as command
from kvpager.engine.request import Completion, FinishReason

Call = Callable[..., object]


def _objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def _answer(kvpager: Call, model: str, prompt: str, *argv: str) -> dict[str, object]:
    ended = kvpager("run", "--model", model, "--json", "--max-tokens", "6", *argv, prompt)
    assert ended.code == 0, ended.err
    return _objects(ended.out)[0]


# -- output --------------------------------------------------------------------------------------------------------


def test_one_prompt_is_streamed_as_text(kvpager: Call, model: str) -> None:
    expected = _answer(kvpager, model, "the moon")["text"]
    ended = kvpager("run", "--model", model, "--max-tokens", "6", "the moon")
    assert (ended.code, ended.out) == (0, f"{expected}\n")
    assert ended.err.startswith("1 answer, 6 tokens in ")
    assert " prompt tokens found in the prefix index; 0 preemptions\n" in ended.err


def test_several_prompts_are_printed_in_their_order(kvpager: Call, model: str) -> None:
    prompts = ["the cook", "a page", "the moon and the sun"]
    expected = [_answer(kvpager, model, prompt)["text"] for prompt in prompts]
    ended = kvpager("run", "--model", model, "--max-tokens", "6", *prompts)
    assert ended.code == 0
    assert ended.out == "".join(f"> {p}\n{text}\n\n" for p, text in zip(prompts, expected, strict=True))


def test_json_is_one_object_a_line(kvpager: Call, model: str) -> None:
    ended = kvpager("run", "--model", model, "--json", "--max-tokens", "4", "--ignore-eos", "one", "two")
    answers = sorted(_objects(ended.out), key=lambda answer: answer["index"])
    assert [(a["index"], a["choice"], a["prompt"]) for a in answers] == [(0, 0, "one"), (1, 0, "two")]
    for answer in answers:
        assert len(answer["token_ids"]) == 4  # type: ignore[arg-type]
        assert answer["finish_reason"] == "length"
        assert answer["prompt_tokens"] > answer["prefix_tokens"] >= 0  # type: ignore[operator]
        assert answer["error"] == ""
        assert answer["preemptions"] == 0


LONG = "a page table maps each page to a block, and a block holds the keys and values of some tokens"


def _with_tiers(folder: Path) -> tuple[str, ...]:
    return (
        "--page-size",
        "16",
        "--tier",
        "host=16MiB",
        "--tier",
        f"disk={folder},size=64MiB",
        "--write-back",
        "through",
    )


def test_the_next_run_finds_on_disk_what_this_one_stored(kvpager: Call, model: str, tmp_path: Path) -> None:
    first = _answer(kvpager, model, LONG, *_with_tiers(tmp_path / "kv"))
    again = _answer(kvpager, model, LONG, *_with_tiers(tmp_path / "kv"))
    assert (first["prefix_tokens"], first["prefix_by_tier"]) == (0, {})
    assert (again["prefix_tokens"], again["prefix_by_tier"]) == (48, {"disk": 48})
    assert again["token_ids"] == first["token_ids"]


@pytest.mark.parametrize("way", ["", ",encrypt,compress"], ids=["sealed", "encrypted"])
def test_pages_are_found_with_their_key_and_with_no_other(kvpager: Call, model: str, tmp_path: Path, way: str) -> None:
    if way:
        pytest.importorskip("cryptography", reason="the extra 'encryption' is not installed")
        pytest.importorskip("zstandard", reason="the extra 'zstd' is not installed")
    found = []
    for number, key in ((1, b"1" * 64), (1, b"1" * 64), (2, b"2" * 64)):
        file = tmp_path / f"key{number}"
        file.touch(mode=0o600)
        file.write_bytes(key)
        tier = f"disk={tmp_path / 'kv'},size=64MiB,key_file={file}{way}"
        found.append(_answer(kvpager, model, LONG, "--page-size", "16", "--tier", tier))
    assert [answer["prefix_tokens"] for answer in found] == [0, 48, 0]
    assert found[0]["token_ids"] == found[1]["token_ids"] == found[2]["token_ids"]


@pytest.mark.heavy
def test_two_processes_one_after_the_other(model: str, tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "kvpager.cli.main", "run", "--model", model, "--json", "--max-tokens", "4"]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        ended = subprocess.run(
            [*command, *_with_tiers(tmp_path / "kv"), LONG],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    assert [answer["prefix_by_tier"] for answer in found] == [{}, {"disk": 48}]
    assert found[0]["token_ids"] == found[1]["token_ids"]


def test_the_summary_says_which_tier_the_tokens_came_from(kvpager: Call, model: str, tmp_path: Path) -> None:
    ended = [
        kvpager("run", "--model", model, "--max-tokens", "2", *_with_tiers(tmp_path / "kv"), LONG) for _ in range(2)
    ]
    assert "0 of 55 prompt tokens found in the prefix index; " in ended[0].err
    assert "48 of 55 prompt tokens found in the prefix index (48 from disk); " in ended[1].err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tier", "dsk=/kv"], "did you mean 'disk'?"),
        (["--tier", "disk=/kv,size=1GiB", "--tier", "host=1GiB"], "nearest first"),
        (["--write-back", "never"], "'through', 'back' or 'selective'"),
        (["--load-deadline", "0"], "seconds above 0"),
        (["--tier", "host=1PiB"], "more than the"),
        (["--tier", "disk=/proc/kv,size=1GiB"], "can't be"),
        (["--tier", "remote=ftp://h/"], "starts with one of redis://"),
        (["--tiers", "host=1GiB"], "did you mean '--tier'?"),
    ],
)
def test_a_tier_that_can_not_be_is_refused(kvpager: Call, model: str, argv: list[str], message: str) -> None:
    ended = kvpager("run", "--model", model, *argv, "the moon")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


def test_a_common_prefix_is_found(kvpager: Call, model: str) -> None:
    prompts = ["a page table maps each page to a block, and then some more text to fill it " + end for end in "xyz"]
    ended = kvpager("run", "--model", model, "--json", "--max-running", "1", "--max-tokens", "2", *prompts)
    found = [answer["prefix_tokens"] for answer in _objects(ended.out)]
    assert found[0] == 0
    assert all(tokens > 16 for tokens in found[1:])  # type: ignore[operator]


def test_several_choices_of_one_prompt(kvpager: Call, model: str) -> None:
    ended = kvpager("run", "--model", model, "--max-tokens", "8", "--n", "2", "--temperature", "1", "the sun")
    heads = [line for line in ended.out.splitlines() if line.startswith("> the sun")]
    assert heads == ["> the sun [1 of 2]", "> the sun [2 of 2]"]


def test_the_seed_repeats_a_draw(kvpager: Call, model: str) -> None:
    def draw(seed: str) -> object:
        return _answer(kvpager, model, "the sun", "--temperature", "1.5", "--seed", seed)["token_ids"]

    assert draw("7") == draw("7")
    assert len({tuple(draw(str(seed))) for seed in range(4)}) > 1  # type: ignore[arg-type]


def test_a_stop_text_ends_the_answer(kvpager: Call, model: str) -> None:
    whole = str(_answer(kvpager, model, "the moon")["text"])
    stop = whole[2]
    answer = _answer(kvpager, model, "the moon", "--stop", stop)
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_an_answer_that_failed_is_code_1(
    monkeypatch: pytest.MonkeyPatch, kvpager: Call, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Completion:
        return Completion(0, 0, 0, "", (), FinishReason.ERROR, 3, 0, 0, error="every token was masked")

    monkeypatch.setattr(command, "_stream", fail)
    ended = kvpager("run", "--model", model, "hi")
    assert ended.code == 1
    assert ended.err.endswith("kvpager: error: prompt 1 failed: every token was masked\n")


# -- prompts -------------------------------------------------------------------------------------------------------


def test_prompts_from_a_file(kvpager: Call, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\n  \nsecond\n")
    ended = kvpager("run", "--model", model, "--json", "--max-tokens", "2", "--file", str(file), "zeroth")
    asked = sorted((answer["index"], answer["prompt"]) for answer in _objects(ended.out))
    assert asked == [(0, "zeroth"), (1, "first"), (2, "second")]


def test_prompts_from_standard_input(kvpager: Call, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    ended = kvpager("run", "--model", model, "--json", "--max-tokens", "2", "--file", "-")
    assert [answer["prompt"] for answer in _objects(ended.out)] == ["from a pipe"]


def test_the_chat_template_is_used_unless_raw(kvpager: Call, model: str) -> None:
    chat = _answer(kvpager, model, "hello")
    raw = _answer(kvpager, model, "hello", "--raw")
    system = _answer(kvpager, model, "hello", "--system", "Be brief.")
    assert raw["prompt_tokens"] < chat["prompt_tokens"] < system["prompt_tokens"]  # type: ignore[operator]


def test_a_model_without_a_chat_template(kvpager: Call, base_model: str) -> None:
    ended = kvpager("run", "--model", base_model, "--max-tokens", "2", "--chat", "hello")
    assert ended.code == 2
    assert "this model has no chat template" in ended.err
    assert "--raw" in ended.err
    assert kvpager("run", "--model", base_model, "--max-tokens", "2", "hello").code == 0


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["run"], "there is no prompt; give it as an argument"),
        (["run", ""], "prompt 1 is empty"),
        (["run", "fine", " \n "], "prompt 2 is empty"),
        (["run", "--file", "nowhere.txt"], "prompt file nowhere.txt can't be read: No such file"),
        (["run", "--model", "./nowhere", "hi"], "there is no model at ./nowhere"),
        (["run", "--model", "smolm2", "hi"], "did you mean 'smollm2'?"),
        (["run", "hi"], "kvpager model fetch smollm2"),
    ],
    ids=["none", "empty", "blank", "no file", "no model", "short name", "not fetched"],
)
def test_wrong_input_is_code_2(argv: list[str], told: str, kvpager: Call) -> None:
    ended = kvpager(*argv)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_a_file_without_a_prompt(kvpager: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n \n")
    ended = kvpager("run", "--file", str(file))
    assert ended.code == 2
    assert "at least one line of text" in ended.err


def test_a_file_that_is_not_text(kvpager: Call, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"\xff\xfe\x00")
    ended = kvpager("run", "--file", str(file))
    assert ended.code == 2
    assert "is not UTF-8 text" in ended.err


def test_a_prompt_longer_than_the_context_is_named_and_nothing_runs(kvpager: Call, model: str) -> None:
    long = "moon " * 600
    ended = kvpager("run", "--model", model, "--json", "--max-tokens", "2", "short", long)
    assert (ended.code, ended.out) == (2, "")
    assert "kvpager: error: prompt 2: the prompt has " in ended.err
    assert "at most 512 fit" in ended.err
    assert kvpager("run", "--model", model, "--max-tokens", "2", "short").code == 0


def test_a_prompt_longer_than_the_pool_is_refused(kvpager: Call, model: str) -> None:
    argv = ["run", "--model", model, "--max-tokens", "2", "moon " * 60]
    ended = kvpager(*argv, "--capacity", "8KiB")
    assert ended.code == 2
    assert "pool 1 blocks of 32 tokens" in ended.err
    assert kvpager(*argv).code == 0


@pytest.mark.parametrize("damage", ["truncated", "gone", "config"])
def test_a_damaged_model_is_code_2(damage: str, kvpager: Call, model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    argv = ["run", "--model", str(folder), "--max-tokens", "2", "hi"]
    assert kvpager(*argv).code == 0
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "gone":
        weights.unlink()
    else:
        (folder / "config.json").write_text("{")
    ended = kvpager(*argv)
    assert (ended.code, ended.out) == (2, "")
    assert str(folder) in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("\n") == 1
