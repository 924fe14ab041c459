"""A tiny model for the whole session, and a call of the command line that keeps away from the user's own settings."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvpager.cli.main import main
from tests.cli.tiny_model import save_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without a chat template."""
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "base", template=None))


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("KVPAGER_") or name == "KV_DEBUG"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KVPAGER_HOME", str(tmp_path / "home"))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call of the command line ended, and what it wrote."""

    code: int
    out: str
    err: str


Call = Callable[..., Ended]


@pytest.fixture
def kvpager(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*argv: str) -> Ended:
        code = main(argv)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return call
