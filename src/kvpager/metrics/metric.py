"""What one metric is: its name, what it counts and how it is read from a snapshot. Knows no Prometheus.

Names follow Prometheus: base units, ``_total`` for counters (which never go down), no unit in a label. Labels are
``tier``, ``kind``, ``reason``, ``state``, ``policy`` and ``mode`` alone, with few values each: never a request, a
tenant or text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kvpager.metrics.snapshot import Snapshot
from kvpager.types import TierKind

PREFIX = "kvpager_"
LABELS = ("tier", "kind", "reason", "state", "policy", "mode", "version")

Series = Mapping[tuple[str, ...], float]  # a value for each combination of the labels' values
Reading = Callable[[Snapshot], Series | float]


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(Enum):
    """The parts of the page and the dashboard, in this order."""

    POOL = "The pool"
    PREFIX = "Prefix cache"
    FAULTS = "Page faults"
    EVICTION = "Eviction"
    TIERS = "Tiers and migration"
    BELOW = "Contexts larger than the device"
    ENGINE = "Engine"
    REQUESTS = "Requests"
    SERVER = "Server"


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` as scraped, with the prefix and, for a counter, with ``_total``. ``read`` is None where it is counted as
    things happen and not read from a snapshot. ``buckets``: upper bounds of a histogram's, without infinity."""

    name: str
    kind: MetricKind
    group: Group
    help: str
    read: Reading | None = None
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The name without the suffix that the exposition adds for counters."""
        return self.name.removesuffix("_total") if self.kind is MetricKind.COUNTER else self.name


def counter(name: str, group: Group, text: str, read: Reading | None = None, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricKind.COUNTER, group, text, read, labels)


def gauge(name: str, group: Group, text: str, read: Reading | None = None, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", MetricKind.GAUGE, group, text, read, labels)


def histogram(name: str, group: Group, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", MetricKind.HISTOGRAM, group, text, None, labels, buckets)


def series(metric: Metric, snapshot: Snapshot) -> Series:
    """Its values, by those of its labels. REQUIRES: it is read from snapshots."""
    assert metric.read is not None
    found = metric.read(snapshot)
    return found if isinstance(found, Mapping) else {(): found}


def tier_name(tier: TierKind) -> str:
    """The value of the label ``tier``."""
    return tier.name.lower()


def by_tier(counts: Mapping[TierKind, float], tiers: "tuple[TierKind, ...]") -> Series:
    """One value for each of ``tiers``, 0 where nothing is counted, and for whatever else is."""
    return {(tier_name(tier),): counts.get(tier, 0) for tier in dict.fromkeys((*tiers, *counts))}
