"""Reports of benchmarks as they are read back from JSON, checked, and how their figures are written as text.

Knows the shape that report.py writes; no page and no benchmark.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpager.errors import ConfigError

_SIGNS = {"at_least": "≥", "at_most": "≤"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. ``bound``: whether the target is "at_least" or "at_most"; None where that is not on record."""

    name: str
    value: float
    unit: str
    target: float | None = None
    bound: str | None = None
    is_met: bool | None = None
    spread: tuple[float, float] | None = None

    @property
    def value_text(self) -> str:
        return number_text(self.value)

    @property
    def target_text(self) -> str:
        if self.target is None:
            return ""
        return f"{_SIGNS.get(self.bound or '', '')} {number_text(self.target)}".strip()

    @property
    def verdict(self) -> str:
        return "" if self.is_met is None else "met" if self.is_met else "missed"

    @property
    def spread_text(self) -> str:
        return "" if self.spread is None else f"{number_text(self.spread[0])} to {number_text(self.spread[1])}"


@dataclass(frozen=True, slots=True)
class Report:
    """``date`` and ``command`` are empty, ``checks`` has no line, where they are not on record. ``shares``: of the
    requests of each workload that were run, where a benchmark has workloads."""

    name: str
    hardware: str
    seed: int
    figures: tuple[Figure, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    date: str = ""
    command: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def versions_text(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())

    @property
    def missed(self) -> tuple[Figure, ...]:
        return tuple(figure for figure in self.figures if figure.is_met is False)

    @property
    def num_targets(self) -> int:
        return sum(figure.is_met is not None for figure in self.figures)

    @property
    def met_text(self) -> str:
        """Empty where there is no target."""
        return f"{self.num_targets - len(self.missed)} of {self.num_targets}" if self.num_targets else ""


def report_of(record: Mapping[str, Any]) -> Report:
    """Raises KeyError, TypeError or ValueError where ``record`` is not what ``report`` returns."""
    return Report(
        name=str(record["name"]),
        hardware=str(record["hardware"]),
        seed=int(record["seed"]),
        figures=tuple(_figure_of(result) for result in record["results"]),
        versions={str(name): str(version) for name, version in (record.get("versions") or {}).items()},
        checks=tuple(str(line) for line in record.get("checks") or ()),
        date=str(record.get("date", "")),
        command=str(record.get("command", "")),
        shares={str(name): float(share) for name, share in (record.get("shares") or {}).items()},
    )


def _figure_of(result: Mapping[str, Any]) -> Figure:
    target, spread = result.get("target"), result.get("spread")
    low_high = None if spread is None else (float(spread[0]), float(spread[1]))
    return Figure(
        name=str(result["name"]),
        value=float(result["value"]),
        unit=str(result["unit"]),
        target=None if target is None else float(target),
        bound=result.get("bound"),
        is_met=result.get("met"),
        spread=low_high,
    )


def read_reports(folder: Path) -> list[Report]:
    """The reports in ``folder``/\\*.json by name. Raises ConfigError naming the file that is none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds results as `kvpager bench --into` writes them")
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(report_of(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ConfigError(f"{path} is no result of a benchmark ({error!r}); run it again or remove it") from error
        if found[-1].name != path.stem:
            raise ConfigError(f"{path} is a result of {found[-1].name!r}; name it {found[-1].name}.json")
    if not found:
        raise ConfigError(f"{folder} has no file *.json; `kvpager bench NAME --into {folder}` writes one")
    return found


def number_text(value: float) -> str:
    """Four digits that count, or whole numbers above a thousand."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
