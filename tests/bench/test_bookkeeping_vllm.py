"""The comparison with vLLM's bookkeeping, with a second one of ours in vLLM's place."""

from pathlib import Path
from typing import Any

import pytest

from kvpager.bench import bookkeeping_vllm
from kvpager.bench.bookkeeping_vllm import Case
from kvpager.bench.bookkeeping_vllm_ours import OurBookkeeper
from kvpager.bench.bookkeeping_vllm_theirs import VllmBookkeeper
from kvpager.errors import ConfigError, InvariantError


class Twin:
    """Answers as vLLM's process does; ``lie``: an operation it answers wrongly."""

    version = "none"

    def __init__(self, lie: str | None = None) -> None:
        self._ours, self._lie = OurBookkeeper(), lie

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        answer = getattr(self._ours, do)(**values)
        if do == self._lie:
            answer["free"] -= 1
        return answer

    def __enter__(self) -> "Twin":
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()


CASES = [
    Case(3, 48, 4, "/3"),
    Case(2, 32, 4, "/2/plain", has_prefix_cache=False, target=None),
    Case(2, 10_000, 4, "/2x10000", target=None),  # more than one step takes
]


def run(monkeypatch: pytest.MonkeyPatch, twin: Twin) -> dict[str, Any]:
    monkeypatch.setattr(bookkeeping_vllm, "VllmBookkeeper", lambda: twin)
    monkeypatch.setattr(bookkeeping_vllm, "_cases", lambda quick: CASES)
    monkeypatch.setattr(bookkeeping_vllm, "CONTEXTS", (64, 4096))
    monkeypatch.setattr(bookkeeping_vllm, "GROWTH_ROUNDS", 2)
    return bookkeeping_vllm.run(quick=True)


def test_the_figures_have_their_names_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {result["name"]: result for result in run(monkeypatch, Twin())["results"]}
    for what in ("append", "lookup", "allocate", "free"):
        figure = results[f"bookkeeping_{what}_vs_vllm/3"]
        assert figure["target"] == 10
        assert figure["value"] > 0
    assert results["bookkeeping_context_growth"]["target"] == 1.1
    assert results["bookkeeping_append_vs_vllm/2/plain"]["target"] is None
    assert "bookkeeping_lookup_vs_vllm/2/plain" not in results


@pytest.mark.parametrize("operation", ["admit", "append", "free"])
def test_a_side_that_did_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    with pytest.raises(InvariantError, match="free differ"):
        run(monkeypatch, Twin(operation))


def test_without_vllm_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make peers"):
        VllmBookkeeper(tmp_path / "python")
