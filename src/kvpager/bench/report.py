"""The shape of a benchmark's result, and what hardware and versions it was measured on.

Does not know when and by which command it ran: who calls the benchmark adds that (``stamped``).
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SEED = 0


@dataclass(frozen=True, slots=True)
class Result:
    """``value`` in ``unit``. The target, if there is one, is what it should be ``at_most`` or ``at_least``.

    ``spread``: the quartiles of the single measurements, where the value is their median.
    """

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    spread: tuple[float, float] | None = None

    @property
    def target(self) -> float | None:
        return self.at_least if self.at_most is None else self.at_most

    @property
    def is_met(self) -> bool | None:
        """None where there is no target."""
        if self.target is None:
            return None
        is_low_enough = self.at_most is None or self.value <= self.at_most
        return is_low_enough and (self.at_least is None or self.value >= self.at_least)

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "met": self.is_met,
        }
        if self.target is not None:
            found["bound"] = "at_least" if self.at_most is None else "at_most"
        return found if self.spread is None else {**found, "spread": list(self.spread)}


def report(
    name: str,
    results: list[Result],
    setting: str = "",
    *,
    checks: Sequence[str] = (),
    peers: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """One object a benchmark prints.

    ``setting``: what else the figures depend on, added to the hardware line. ``checks``: what was compared before
    anything was timed, a line each. ``peers``: versions of what it was measured against.
    """
    return {
        "name": name,
        "hardware": f"{hardware()}, {setting}" if setting else hardware(),
        "versions": {**versions(), **(peers or {})},
        "seed": SEED,
        "checks": list(checks),
        "results": [result.as_dict() for result in results],
    }


def stamped(found: Mapping[str, object], command: str, date: str) -> dict[str, object]:
    """The report with the ``command`` that repeats it and the day it ran on, ahead of its results."""
    head = {key: value for key, value in found.items() if key != "results"}
    return {**head, "date": date, "command": command, "results": found["results"]}


def hardware() -> str:
    return f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("kvpager", "numpy", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def seconds_per_call(call: Callable[[], object], repeats: int) -> float:
    """The median time of a call, seconds."""
    return statistics.median(seconds_of(call) for _ in range(repeats))


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
