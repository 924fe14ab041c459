"""Every example runs as it stands, on a tiny random model, and prints what it promises."""

import runpy
import sys
from pathlib import Path

import pytest

from tests.cli.tiny_model import save_tiny_model

EXAMPLES = Path(__file__).parents[1] / "examples"
PROMISED = {
    "pages_by_hand": ["the original is unchanged: True", "the fork has its own ending: True", "demand 3", "used"],
    "many_prompts": ["What is a page table?  [0 of ", "three endings of one prompt", "  2: "],
    "transformers_attach": ["The keeper of the lighthouse", "prompt tokens found so far]"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_it_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 50


@pytest.mark.parametrize("name", PROMISED)
def test_it_runs(name: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    takes_model = "sys.argv" in path.read_text()
    monkeypatch.setattr(sys, "argv", [str(path), *([model] if takes_model else [])])
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    for promise in PROMISED[name]:
        assert promise in printed


def test_prompts_that_begin_alike_are_found(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "transformers_attach.py"))["main"](model)
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.endswith("found so far]")]
    assert first.strip().startswith("[0 of ")
    assert not second.strip().startswith("[0 of ")
