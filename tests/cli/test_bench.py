"""``kvpager bench``: finds what can be run, prints a table or one object, and ends with 0 whatever the figures are."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from kvpager.cli import bench, bench_all
from kvpager.cli.main import main
from kvpager.cli.table import format_table

Call = Callable[..., object]
RESULTS = [
    {"name": "step", "value": 12.3456, "unit": "us", "target": 20.0, "met": True, "bound": "at_most"},
    {"name": "bytes", "value": 1234567.0, "unit": "bytes", "target": 10.0, "met": False},
    {"name": "count", "value": 3, "unit": "pages", "target": None, "met": None},
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Replaces the benchmarks by one; the list says with which ``quick`` it was run."""
    asked: list[bool] = []

    def run(quick: bool) -> dict[str, object]:
        asked.append(quick)
        return {"name": "speed", "hardware": "a machine", "versions": {"python": "3"}, "seed": 0, "results": RESULTS}

    module = ModuleType("kvpager.bench.speed", "How fast it is.")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_benchmarks", lambda: iter([module]))
    return asked


def test_json_is_the_object_as_it_stands(kvpager: Call, asked: list[bool]) -> None:
    ended = kvpager("bench", "speed", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["results"] == RESULTS
    assert asked == [False]


def test_the_table(kvpager: Call, asked: list[bool]) -> None:
    ended = kvpager("bench", "speed", "--quick")
    assert ended.code == 0  # though a target was missed
    assert asked == [True]
    assert ended.out.splitlines() == [
        "speed on a machine, seed 0",
        "python 3",
        "",
        "figure      value  unit   target  met",
        "------  ---------  -----  ------  ---",
        "step        12.35  us         20  yes",
        "bytes   1,234,567  bytes      10  no",
        "count           3  pages",
    ]


def test_without_a_name_they_are_listed(kvpager: Call, asked: list[bool]) -> None:
    assert kvpager("bench").out.splitlines()[-1].split() == ["speed", "How", "fast", "it", "is."]
    assert json.loads(kvpager("bench", "--json").out) == {"speed": "How fast it is."}
    assert asked == []


def test_an_unknown_name_is_suggested(kvpager: Call, asked: list[bool]) -> None:
    ended = kvpager("bench", "sped")
    assert ended.code == 2
    assert "unknown benchmark 'sped'; did you mean 'speed'?" in ended.err
    assert asked == []


def test_no_benchmark_at_all(kvpager: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    ended = kvpager("bench", "speed")
    assert ended.code == 2
    assert "none is installed" in ended.err


def test_those_of_the_package_are_found() -> None:
    names = [module.__name__ for module in bench._benchmarks()]
    assert "kvpager.bench.bookkeeping" in names
    assert "kvpager.bench.report" not in names  # no benchmark


def test_a_table_without_rows() -> None:
    assert format_table([], ["a", "bc"]).splitlines() == ["a  bc", "-  --"]


def test_a_folder_is_for_those_that_use_one(kvpager: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(quick: bool, folder: str = "") -> dict[str, object]:
        return {"name": folder, "hardware": "", "versions": {}, "seed": 0, "results": []}

    module = ModuleType("kvpager.bench.files", "How fast files are.")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_benchmarks", lambda: iter([module]))
    assert json.loads(kvpager("bench", "files", "--folder", "/there", "--json").out)["name"] == "/there"
    assert json.loads(kvpager("bench", "files", "--json").out)["name"] == ""


def test_a_folder_is_refused_by_the_others(kvpager: Call, asked: list[bool]) -> None:
    ended = kvpager("bench", "speed", "--folder", "/there")
    assert ended.code != 0
    assert "uses no folder" in ended.err
    assert asked == []


def test_the_object_says_when_and_how_it_was_made_but_no_folder(kvpager: Call, folders: None) -> None:
    made = json.loads(kvpager("bench", "files", "--quick", "--folder", "/there", "--json").out)
    assert made["command"] == "kvpager bench files --quick --folder DIR"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """One benchmark that takes a folder."""

    def run(quick: bool, folder: str = "") -> dict[str, object]:
        return {"name": "files", "hardware": "", "versions": {}, "seed": 0, "results": []}

    module = ModuleType("kvpager.bench.files", "How fast files are.")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_benchmarks", lambda: iter([module]))


def test_a_page_and_a_file_are_written_beside_the_table(kvpager: Call, asked: list[bool], tmp_path: Path) -> None:
    ended = kvpager("bench", "speed", f"--html={tmp_path / 'page.html'}", f"--into={tmp_path}")
    assert ended.code == 0
    assert "12.35" in ended.out
    assert json.loads((tmp_path / "speed.json").read_text())["results"] == RESULTS
    page = (tmp_path / "page.html").read_text()
    assert "kvpager bench speed" in page
    assert "\u2264 20" in page


@pytest.mark.parametrize("flag", ["--html=missing/page.html", "--into=missing", "--html=."])
def test_a_missing_folder_is_told_before_anything_runs(
    kvpager: Call, asked: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = kvpager("bench", "speed", flag)
    assert ended.code == 2
    assert "folder" in ended.err
    assert asked == []


# -- all of them ---------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, asked: list[bool]) -> list[list[str]]:
    """The commands started instead of processes: they run here, and a benchmark named "broken" fails."""
    started: list[list[str]] = []
    speed = next(bench._benchmarks())
    broken = ModuleType("kvpager.bench.broken", "Fails.")
    broken.run = lambda quick, folder="": None  # type: ignore[attr-defined]
    monkeypatch.setattr(bench, "_benchmarks", lambda: iter([broken, speed]))

    class Ended:
        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command[3:])
            self.returncode = 1 if "broken" in command else main(command[3:])

    monkeypatch.setattr(bench_all.subprocess, "run", Ended)
    return started


def test_all_run_though_one_fails(kvpager: Call, started: list[list[str]], tmp_path: Path) -> None:
    ended = kvpager("bench", "all", f"--into={tmp_path}", "--quick", "--folder=there")
    assert started == [
        ["bench", "broken", f"--into={tmp_path}", "--quick", "--folder=there"],
        ["bench", "speed", f"--into={tmp_path}", "--quick"],
    ]
    assert ended.code == 1
    assert ended.out.splitlines()[-1].split() == ["speed", "3", "1", "of", "2", "bytes"]
    assert "broken failed" in ended.err


def test_all_need_a_folder(kvpager: Call, started: list[list[str]]) -> None:
    ended = kvpager("bench", "all")
    assert ended.code == 2
    assert "--into DIR" in ended.err
    assert started == []


# -- results that are on record ------------------------------------------------------------------------------------


def test_kept_results_are_summed_up(kvpager: Call, asked: list[bool], tmp_path: Path) -> None:
    kvpager("bench", "speed", f"--into={tmp_path}")
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- figures speed -->\nold\n<!-- /figures -->\nend\n")
    ended = kvpager("bench", f"--from={tmp_path}", f"--fill={page}", f"--graph={tmp_path / 'peers.svg'}")
    assert ended.code == 0
    assert ended.out.splitlines()[-1].split() == ["speed", "3", "1", "of", "2", "bytes"]
    assert page.read_text().startswith("# Mine\n<!-- figures speed -->\n1 of 2 targets met.\n**Missed: `bytes`.**")
    assert page.read_text().endswith("<!-- /figures -->\nend\n")
    assert "no result of peers" in ended.err
    assert not (tmp_path / "peers.svg").exists()
    assert asked == [False]
    assert json.loads(kvpager("bench", f"--from={tmp_path}", "--json").out)["speed"]["count"] == 3


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--from=missing"], "is no folder"),
        (["--from=empty"], "has no file"),
        (["--from=broken"], r"speed.json is no result"),
        (["--from=renamed"], "name it speed.json"),
        (["speed", "--from=empty"], "--from measures nothing"),
        (["--fill=page.md"], "name their folder: --from"),
        (["--from=kept", "--fill=page.md"], "page.md: the page has no line"),
        (["--from=kept", "--fill=none.md"], "none.md: "),
        (["--from=kept", "--graph=missing/peers.svg"], "is no file in a folder that exists"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    kvpager: Call,
    asked: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    fault: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "broken", "renamed", "kept"):
        Path(name).mkdir()
    kvpager("bench", "speed", "--into=kept")
    Path("broken/speed.json").write_text('{"name": "speed"}')
    Path("renamed/fast.json").write_bytes(Path("kept/speed.json").read_bytes())
    Path("page.md").write_text("# Mine\n")
    ended = kvpager("bench", *arguments)
    assert ended.code == 2
    assert re.search(fault, ended.err)
