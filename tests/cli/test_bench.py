"""``kvpager bench``: finds what can be run, prints a table or one object, and ends with 0 whatever the figures are."""

import json
from collections.abc import Callable
from types import ModuleType

import pytest

from kvpager.cli import bench
from kvpager.cli.table import format_table

Call = Callable[..., object]
RESULTS = [
    {"name": "step", "value": 12.3456, "unit": "us", "target": 20.0, "met": True},
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
