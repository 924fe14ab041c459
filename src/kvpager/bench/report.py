"""The shape of a benchmark's result, and what hardware and versions it was measured on."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SEED = 0


@dataclass(frozen=True, slots=True)
class Result:
    """``value`` in ``unit``; ``target`` is an upper bound, or None where the figure has none."""

    name: str
    value: float
    unit: str
    target: float | None = None

    def as_dict(self) -> dict[str, object]:
        met = None if self.target is None else self.value <= self.target
        return {"name": self.name, "value": self.value, "unit": self.unit, "target": self.target, "met": met}


def report(name: str, results: list[Result]) -> dict[str, object]:
    """One object a benchmark prints."""
    return {
        "name": name,
        "hardware": hardware(),
        "versions": versions(),
        "seed": SEED,
        "results": [result.as_dict() for result in results],
    }


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
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
