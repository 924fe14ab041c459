"""``kvpager bench policies`` on tiny traces: all figures are there, and wrong replays are not timed."""

from pathlib import Path

import numpy as np
import pytest

from kvpager.bench import policies
from kvpager.errors import ConfigError, InvariantError
from kvpager.eviction.make import POLICIES
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.readers import write_arrays
from kvpager.simulator.trace import Trace
from tests.simulator.forest import random_trace

CASES = (
    policies.Case("conversation", "*conversation*", {10: 1, 30: 1}, {}, (30,), 30),
    policies.Case("weka", "*weka*", {30: 1}, {30: 2}, (), 30),
)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_arrays(random_trace(1, requests=80), tmp_path / "conversation.npz")
    write_arrays(random_trace(2, requests=80), tmp_path / "weka.npz")
    return str(tmp_path)


def test_every_figure_of_the_table_is_there(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_TIERS", (("device", 12.0), ("host", 20.0)))
    monkeypatch.setattr(policies, "run_in_turn", lambda calls, budget, least: _FakeTimes([call() for call in calls]))
    rows = policies.run(traces=folder, cases=CASES)["results"]
    assert isinstance(rows, list)
    names = {row["name"] for row in rows}
    assert len(names) == len(rows)
    assert names >= {
        "conversation_10_lru_of_min",
        "conversation_30_lru_of_min",
        "weka_30_lru_of_min",
        "two_tier_conversation_lru_total_of_min",
        "lru_refs_per_second_conversation",
        "min_refs_per_second_weka",
    }
    if "adaptive" in POLICIES:
        assert names >= {
            "conversation_30_adaptive_of_min",
            "conversation_30_adaptive_of_lru",
            "weka_30_adaptive_with_stops_of_min",
            "two_tier_conversation_total_of_min",
            "two_tier_conversation_demotions_of_lru",
        }
    assert {f"conversation_30_{name}_of_min" for name in POLICIES} <= names
    assert "conversation_10_fifo_of_min" not in names
    assert all(0 < row["value"] <= 100 for row in rows if row["name"].endswith("_of_min"))


class _FakeTimes:
    def __init__(self, found: list[object]) -> None:
        self.found = found

    def median(self, call: int) -> float:
        assert isinstance(self.found[call], ReplayedPath)
        return 1.0


def test_a_way_over_arrays_that_finds_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = random_trace(1, requests=80)
    policies._check(trace, CASES[0])
    right = policies.PATHS["lru"]

    def wrong(trace: Trace, capacity: int) -> ReplayedPath:
        found = right(trace, capacity)
        return ReplayedPath("lru", capacity, np.maximum(found.hit_pages - 1, 0), found.evictions)

    monkeypatch.setitem(policies.PATHS, "lru", wrong)
    with pytest.raises(InvariantError, match="lru hits other blocks"):
        policies._check(trace, CASES[0])


def test_the_head_of_a_trace_is_a_trace() -> None:
    trace = random_trace(1, requests=80)
    head = policies._head(trace, 100)
    assert 90 < head.num_references <= 100
    assert np.array_equal(head.pages, trace.pages[: head.num_references])


def test_without_the_traces_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--traces DIR"):
        policies.run(quick=True)
    with pytest.raises(ConfigError, match="put it there"):
        policies.run(quick=True, traces=str(tmp_path))
