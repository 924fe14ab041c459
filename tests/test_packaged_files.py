"""What a wheel holds beside compiled code: every file of the package, so the page, its fonts and the tables too."""

import os
import zipfile
from pathlib import Path

import pytest

build = pytest.importorskip("scikit_build_core.build", reason="needs the build backend")
ROOT = Path(__file__).parents[1]
_MADE_HERE = {".pyc", ".so"}


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where a backend builds
    name = build.build_wheel(os.fspath(tmp_path), {"wheel.cmake": "false", "build-dir": os.fspath(tmp_path / "build")})
    with zipfile.ZipFile(tmp_path / name) as wheel:
        held = {each for each in wheel.namelist() if each.startswith("kvpager/")}
    source = ROOT / "src"
    files = (each for each in (source / "kvpager").rglob("*") if each.is_file() and each.suffix not in _MADE_HERE)
    assert held == {each.relative_to(source).as_posix() for each in files}
    assert {Path(each).suffix for each in held} >= {".html", ".js", ".css", ".woff2", ".svg", ".csv", ".typed"}
