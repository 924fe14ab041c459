"""Compares calls by running them in turn (A B B A A B ...): whatever else the machine does then meets all of them."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from kvpager.bench.report import Result, seconds_of

Call = Callable[..., object]
Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the ratios of neighbouring runs, and their quartiles."""

    value: float
    low: float
    high: float

    def result(
        self, name: str, unit: str = "ratio", *, at_most: float | None = None, at_least: float | None = None
    ) -> Result:
        return Result(name, self.value, unit, at_most, at_least, (self.low, self.high))


class Times:
    """Seconds of each call, round by round: ``seconds[call][round]``."""

    def __init__(self, seconds: list[list[float]]) -> None:
        self.seconds = seconds

    def median(self, call: int) -> float:
        return statistics.median(self.seconds[call])

    def ratio(self, over: int, under: int, scale: float = 1.0) -> Ratio:
        """Time of call ``over`` over that of ``under``, times ``scale``. Paired by round: a slow phase of the machine
        slows both, and a single disturbed round does not move the median."""
        found = [scale * a / b for a, b in zip(self.seconds[over], self.seconds[under], strict=True)]
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
        return Ratio(middle, low, high)

    def fastest(self, calls: Iterable[int]) -> int:
        return min(calls, key=self.median)


def run_in_turn(calls: list[Call], budget: float, least: int = 5) -> Times:
    """Runs all calls once unmeasured, then round by round for ``budget`` seconds, and at least ``least`` rounds.

    Every other round goes backwards: what a call leaves in the caches helps or hurts each of its neighbours in turn.
    """
    for call in calls:
        call()
    return measure_in_turn([partial(seconds_of, call) for call in calls], budget, least)


def measure_in_turn(measures: list[Measure], budget: float, least: int = 5) -> Times:
    """The same without the first round, for calls that return the seconds that count."""
    seconds: list[list[float]] = [[] for _ in measures]
    stop = time.perf_counter() + budget
    for number in itertools.count():
        if number >= least and time.perf_counter() >= stop:
            return Times(seconds)
        order = range(len(measures))
        for at in reversed(order) if number % 2 else order:
            seconds[at].append(measures[at]())
    raise AssertionError("the count has no end")
