"""``kvpager disk``: shows, checks and empties a folder."""

import json
from pathlib import Path

import pytest

from kvpager.cli.main import main
from tests.tiers.disk.pages import open_store, put, slab_files


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out + err


@pytest.fixture
def folder(fast_folder: Path) -> Path:
    store = open_store(fast_folder / "kv")
    put(store, *range(20))
    store.close()
    return fast_folder / "kv"


def test_stat_counts_pages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "disk", "stat", folder, "--json")
    report = json.loads(out)
    assert code == 0
    assert (report["pages"], report["damaged"], report["whole"]) == (20, 0, True)
    assert report["file_bytes"] == sum(path.stat().st_size for path in slab_files(folder))
    assert "20 pages in " in call(capsys, "disk", "stat", folder)[1]


def test_verify_finds_a_wrong_byte_and_a_damaged_slab(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "disk", "verify", folder)[0] == 0
    first, second = slab_files(folder)
    content = bytearray(first.read_bytes())
    content[-5] ^= 1
    first.write_bytes(content)
    assert call(capsys, "disk", "stat", folder, "--json")[0] == 0
    code, out = call(capsys, "disk", "verify", folder, "--json")
    report = json.loads(out)
    assert code == 1
    assert (report["pages"], report["damaged"]) == (19, 1)
    assert report["wrong"] == [f"{first.name} {report['slabs'][0]['slots'] - 1}"]
    second.write_bytes(b"junk")
    code, out = call(capsys, "disk", "verify", folder)
    assert code == 1
    assert "damaged" in out


def test_clear_removes_slabs_unless_somebody_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.txt").touch()
    store = open_store(folder)
    code, out = call(capsys, "disk", "clear", folder)
    assert code == 2
    assert "another process" in out
    store.close()
    assert "removed 20 pages" in call(capsys, "disk", "clear", folder)[1]
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "mine.txt"]


def test_wrong_calls(fast_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "disk", "stat", fast_folder / "none")[0] == 2
    assert not (fast_folder / "none").exists()
    code, out = call(capsys, "disk", "state", fast_folder)
    assert code == 2
    assert "did you mean 'stat'?" in out
