"""``kvpager prefix``: a prompt's KV leaves in a file, and another folder has it after an import."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., object]
TEXT = "a page table maps each page to a block, and a block holds the keys and values of some tokens"


def test_what_was_exported_is_found_after_an_import(kvpager: Call, model: str, tmp_path: Path) -> None:
    common = ("--model", model, "--page-size", "16")
    file, tier = str(tmp_path / "prefix"), ("--tier", f"disk={tmp_path / 'kv'},size=64MiB")
    exported = kvpager("prefix", "export", file, TEXT, "--json", *common)
    assert exported.code == 0, exported.err
    shown = json.loads(exported.out)
    assert (shown["tokens"], shown["bytes"]) == (48, Path(file).stat().st_size)
    imported = kvpager("prefix", "import", file, *common, *tier)
    assert imported.code == 0, imported.err
    assert imported.out.startswith("48 tokens (")
    answer = json.loads(kvpager("run", "--json", "--max-tokens", "2", *common, *tier, TEXT).out)
    assert answer["prefix_by_tier"] == {"disk": 48}
    alone = json.loads(kvpager("run", "--json", "--max-tokens", "2", *common, TEXT).out)
    assert answer["token_ids"] == alone["token_ids"]


def test_a_text_of_several_lines_comes_from_a_file(
    kvpager: Call, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the moon\n\nand the sun and the cook\n"))
    ended = kvpager(
        "prefix", "export", str(tmp_path / "x"), "--file", "-", "--raw", "--model", model, "--page-size", "4", "--json"
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["tokens"] >= 8


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["exprot", "f"], "did you mean 'export'?"),
        (["export", "f"], "there is no prompt"),
        (["import", "f"], "add --tier disk=FOLDER"),
        (["import", "f", "text", "--tier", "disk=/kv,size=1GiB"], "belong to 'export'"),
    ],
)
def test_what_makes_no_sense_is_refused(kvpager: Call, argv: list[str], message: str) -> None:
    ended = kvpager("prefix", *argv)
    assert ended.code == 2
    assert message in ended.err


def test_a_file_that_is_none_is_refused(kvpager: Call, model: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no prefix file")
    tier = ("--tier", f"disk={tmp_path / 'kv'},size=64MiB")
    ended = kvpager("prefix", "import", str(tmp_path / "x"), "--model", model, *tier)
    assert ended.code == 1
    assert "prefix file" in ended.err
