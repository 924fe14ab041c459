"""A figure and its target, from above or from below."""

import pytest

from kvpager.bench.report import Result, report, stamped


@pytest.mark.parametrize(
    ("result", "target", "met"),
    [
        pytest.param(Result("time", 2.0, "us", 2.0), 2.0, True, id="at-most-met"),
        pytest.param(Result("time", 2.1, "us", 2.0), 2.0, False, id="at-most-missed"),
        pytest.param(Result("share", 0.6, "share", at_least=0.55), 0.55, True, id="at-least-met"),
        pytest.param(Result("share", 0.5, "share", at_least=0.55), 0.55, False, id="at-least-missed"),
        pytest.param(Result("count", 3.0, "pages"), None, None, id="no-target"),
        pytest.param(Result("share", float("nan"), "share", at_least=0.5), 0.5, False, id="not-a-number"),
    ],
)
def test_a_target_is_met_or_not(result: Result, target: float | None, met: bool | None) -> None:
    shown = result.as_dict()
    assert set(shown) - {"bound"} == {"name", "value", "unit", "target", "met"}
    assert shown.get("bound") == (None if target is None else "at_most" if result.at_most is not None else "at_least")
    assert shown["target"] == target
    assert shown["met"] is met


def test_the_spread_is_shown_where_it_is_known() -> None:
    assert Result("share", 0.6, "share", spread=(0.5, 0.7)).as_dict()["spread"] == [0.5, 0.7]


def test_a_setting_joins_the_hardware_line() -> None:
    plain, with_setting = report("speed", []), report("speed", [], "2 threads")
    assert with_setting["hardware"] == f"{plain['hardware']}, 2 threads"


def test_a_report_says_what_was_checked_and_against_whom() -> None:
    found = report("speed", [], checks=["bytes came back as they were"], peers={"llama.cpp": "b1"})
    assert found["checks"] == ["bytes came back as they were"]
    versions = found["versions"]
    assert isinstance(versions, dict)
    assert versions["llama.cpp"] == "b1"
    assert "python" in versions


def test_the_stamp_stands_ahead_of_the_results() -> None:
    found = stamped(report("speed", []), "kvpager bench speed", "2026-01-02")
    assert list(found)[-3:] == ["date", "command", "results"]
    assert (found["date"], found["command"], found["name"]) == ("2026-01-02", "kvpager bench speed", "speed")
