"""A figure and its target, from above or from below."""

import pytest

from kvpager.bench.report import Result, report


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
    assert set(shown) == {"name", "value", "unit", "target", "met"}
    assert shown["target"] == target
    assert shown["met"] is met


def test_the_spread_is_shown_where_it_is_known() -> None:
    assert Result("share", 0.6, "share", spread=(0.5, 0.7)).as_dict()["spread"] == [0.5, 0.7]


def test_a_setting_joins_the_hardware_line() -> None:
    plain, with_setting = report("speed", []), report("speed", [], "2 threads")
    assert with_setting["hardware"] == f"{plain['hardware']}, 2 threads"
