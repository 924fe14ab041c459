"""``kvpager chat``: a conversation keeps its pages, commands work, and Ctrl-C stops the answer only."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kvpager.cli import session
from kvpager.cli.session import interruptible

Call = Callable[..., object]


@pytest.fixture
def talk(kvpager: Call, model: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    def call(lines: str, *argv: str) -> object:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return kvpager("chat", "--model", model, "--max-tokens", "4", "--ignore-eos", *argv)

    return call


def _turns(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_turn_finds_the_pages_of_those_before(talk: Call) -> None:
    ended = talk("the moon and the sun change each night\n\nand then?\nwhy?\n", "--json")
    assert ended.code == 0
    turns = _turns(ended.out)
    assert len(turns) == 3  # the empty line is no turn
    assert turns[0]["prefix_tokens"] == 0
    for before, after in pairwise(turns):
        assert after["prompt_tokens"] > before["prompt_tokens"] + 4
        assert after["prefix_tokens"] >= before["prompt_tokens"] // 32 * 32


def test_the_answers_are_text_and_the_figures_notes(talk: Call) -> None:
    ended = talk("hello\n")
    assert ended.out.endswith("\n")
    assert "prompt tokens cached; length]" in ended.err
    assert "[4 tokens in " in ended.err


def test_reset_forgets(talk: Call) -> None:
    first, again = _turns(talk("hello\n/reset\nhello\n", "--json").out)
    assert again["prompt_tokens"] == first["prompt_tokens"]
    first, second = _turns(talk("hello\nhello\n", "--json").out)
    assert second["prompt_tokens"] > first["prompt_tokens"]


def _kept(folder: Path) -> tuple[str, ...]:
    return ("--session", "moon", "--page-size", "16", "--tier", f"disk={folder},size=64MiB")


def test_a_named_session_goes_on_after_a_restart_with_its_pages_from_the_disk(talk: Call, tmp_path: Path) -> None:
    whole = _turns(talk("the moon and the sun\nand then?\n", "--json", "--page-size", "16").out)
    kept = _kept(tmp_path / "kv")
    first, second = talk("the moon and the sun\n", "--json", *kept), talk("and then?\n", "--json", *kept)
    [before], [after] = _turns(first.out), _turns(second.out)
    assert [before["token_ids"], after["token_ids"]] == [turn["token_ids"] for turn in whole]
    assert after["prompt_tokens"] == whole[1]["prompt_tokens"]
    assert after["prefix_tokens"] == before["prompt_tokens"] // 16 * 16  # prefetched, so they may be there already
    assert "going on" not in first.err
    assert "going on with the session: 1 turn, " in second.err
    named = [path.name for path in (tmp_path / "kv").iterdir()]
    assert not [name for name in named if "moon" in name]


def test_reset_forgets_the_session_too(talk: Call, tmp_path: Path) -> None:
    kept = _kept(tmp_path / "kv")
    talk("the moon\n/reset\n", *kept)
    assert "going on with the session: 0 turns, 0 tokens" in talk("", *kept).err


def test_a_session_needs_a_disk_tier(talk: Call) -> None:
    for argv in ([], ["--tier", "host=16MiB"]):
        ended = talk("", "--session", "moon", *argv)
        assert ended.code == 2
        assert "add --tier disk=FOLDER" in ended.err


def test_commands(talk: Call) -> None:
    ended = talk("/help\n/stats\n/reste\n/exit\nnever answered\n")
    assert (ended.code, ended.out) == (0, "")
    assert "/reset  forget the conversation" in ended.err
    assert "blocks   0 used" in ended.err
    assert "unknown command '/reste'; did you mean '/reset'?" in ended.err


def test_a_turn_that_does_not_fit_leaves_the_conversation_as_it_was(talk: Call) -> None:
    ended = talk("hello\n" + "moon " * 600 + "\nhello\n", "--json")
    assert ended.code == 0
    assert "at most 512 fit" in ended.err
    assert "The message was not taken" in ended.err
    turns = _turns(ended.out)
    assert [turn["prompt_tokens"] for turn in turns] == [
        turn["prompt_tokens"] for turn in _turns(talk("hello\nhello\n", "--json").out)
    ]


def test_the_system_text_opens_every_conversation(talk: Call) -> None:
    plain, instructed = talk("hello\n", "--json"), talk("hello\n/reset\nhello\n", "--json", "--system", "Be brief.")
    counts = [turn["prompt_tokens"] for turn in _turns(instructed.out)]
    assert counts[0] == counts[1] > _turns(plain.out)[0]["prompt_tokens"]


def test_only_one_answer_makes_sense(talk: Call) -> None:
    ended = talk("hello\n", "--n", "2")
    assert ended.code == 2
    assert "--n 2 makes no sense" in ended.err


def test_a_model_without_a_chat_template_is_refused(kvpager: Call, base_model: str) -> None:
    ended = kvpager("chat", "--model", base_model)
    assert ended.code == 2
    assert "no chat template" in ended.err


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(talk: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    presses = iter([True, False, False])

    class PressedDuringTheFirstAnswer(session.Interruption):
        def __init__(self) -> None:
            super().__init__()
            self._steps = 0
            self._is_pressed = next(presses)

        @property
        def is_asked(self) -> bool:
            self._steps += 1
            return self._is_pressed and self._steps > 3

        @is_asked.setter
        def is_asked(self, value: bool) -> None: ...

    monkeypatch.setattr(session, "Interruption", PressedDuringTheFirstAnswer)
    stopped, whole = _turns(talk("hello\nhello\n", "--json", "--max-tokens", "20").out)
    assert stopped["finish_reason"] == "cancelled"
    assert 0 < len(stopped["token_ids"]) < 20  # type: ignore[arg-type]
    assert (whole["finish_reason"], len(whole["token_ids"])) == ("length", 20)  # type: ignore[arg-type]


def test_the_first_ctrl_c_is_noted_and_the_second_one_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interruption:
        assert not interruption.is_asked
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.is_asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_at_the_prompt_of_a_pipe_ends(kvpager: Call, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed(io.StringIO):
        def readline(self, *_: object) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Pressed())
    assert kvpager("chat", "--model", model).code == 130


def test_ctrl_c_at_the_prompt_of_a_terminal_throws_the_line_away(
    kvpager: Call, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter([KeyboardInterrupt(), "/help", EOFError()])

    def press(prompt: str = "") -> str:
        item = next(typed)
        if isinstance(item, BaseException):
            raise item
        return item

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", press)
    ended = kvpager("chat", "--model", model)
    assert ended.code == 0
    assert "Ctrl-D ends" in ended.err
    assert "list the commands" in ended.err
