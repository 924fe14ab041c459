"""Calls in turn, and ratios of neighbours."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kvpager.bench import interleaved
from kvpager.bench.interleaved import Times, measure_in_turn, run_in_turn


def test_every_other_round_goes_backwards() -> None:
    ran = ""

    def call(name: str) -> Callable[[], None]:
        def run() -> None:
            nonlocal ran
            ran += name

        return run

    times = run_in_turn([call("A"), call("B"), call("C")], 0.0, least=3)
    assert ran == "ABC" + "ABC" + "CBA" + "ABC"  # the first three unmeasured
    assert [len(seconds) for seconds in times.seconds] == [3, 3, 3]


def test_it_goes_on_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def call() -> float:
        nonlocal now
        now += 2.0
        return 1.0

    monkeypatch.setattr(interleaved, "time", SimpleNamespace(perf_counter=lambda: now))
    assert measure_in_turn([call, call], 21.0, least=1).seconds == [[1.0] * 6] * 2  # six rounds of four seconds


def test_a_ratio_is_of_neighbours() -> None:
    slow_phase = [1.0, 1.0, 10.0, 10.0, 1.0]
    times = Times([[2 * t for t in slow_phase], slow_phase])
    ratio = times.ratio(0, 1)
    assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)
    assert times.ratio(1, 0, scale=3.0).value == pytest.approx(1.5)


def test_one_disturbed_round_does_not_move_it() -> None:
    assert Times([[2.0, 2.0, 2.0, 50.0, 2.0], [1.0] * 5]).ratio(0, 1).value == 2.0


def test_the_fastest_is_found_among_those_asked_for() -> None:
    times = Times([[1.0] * 3, [3.0] * 3, [2.0, 2.0, 9.0]])
    assert times.fastest((1, 2)) == 2
    assert times.fastest(range(3)) == 0


def test_a_result_carries_its_spread_and_target() -> None:
    shown = Times([[2.0, 3.0, 4.0], [1.0, 1.0, 1.0]]).ratio(0, 1).result("speed", at_least=2.5).as_dict()
    assert shown == {
        "name": "speed",
        "value": 3.0,
        "unit": "ratio",
        "target": 2.5,
        "bound": "at_least",
        "met": True,
        "spread": [2.5, 3.5],
    }
