"""What ``/metrics`` answers: a snapshot of the engine and the counts of requests, in Prometheus' or OpenMetrics' text.

Knows no HTTP and no engine: whoever calls brings the snapshot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics

from kvpager.metrics.catalogue import BY_FAMILY, BY_NAME, SNAPSHOT_METRICS
from kvpager.metrics.metric import PREFIX, Metric, MetricKind, Series, series
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.metrics.snapshot import Snapshot
from kvpager.metrics.vllm_names import vllm_families
from kvpager.version import __version__

_OPENMETRICS = "application/openmetrics-text"


class FamilySource(Protocol):
    """Whatever else has something to show that is in the catalogue: ages of pages, events that were lost."""

    def families(self) -> Iterable[Family]:
        """Called on the event loop; must not wait."""
        ...


@dataclass(frozen=True, slots=True)
class Rendered:
    body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class _Collected:
    """What an encoder wants of a registry."""

    families: tuple[Family, ...]

    def collect(self) -> Iterator[Family]:
        return iter(self.families)


class Exposition:
    """Of one server. ``sources``: shown beside; more may be added at any time."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests
        self.sources: list[FamilySource] = []

    def render(self, snapshot: Snapshot, now: float, *, accept: str = "", vllm_model: str | None = None) -> Rendered:
        """``now``: seconds of the clock of ``snapshot.at``. ``accept``: the header; OpenMetrics where it asks for it.
        ``vllm_model``: the model's name under which vLLM's names are shown too; None: they are not."""
        collected = _Collected(tuple(self.families(snapshot, now, vllm_model)))
        if _wants_openmetrics(accept):
            # The default escaping turns the colon of vLLM's names into an underscore; none of our names needs any.
            body = openmetrics.generate_latest(collected, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return Rendered(body, openmetrics.CONTENT_TYPE_LATEST)
        return Rendered(generate_latest(collected), CONTENT_TYPE_PLAIN_0_0_4)

    def families(self, snapshot: Snapshot, now: float, vllm_model: str | None = None) -> Iterator[Family]:
        yield _family(BY_NAME[f"{PREFIX}build_info"], {(__version__,): 1.0})
        yield _family(BY_NAME[f"{PREFIX}snapshot_age_seconds"], {(): max(0.0, now - snapshot.at)})
        for metric in SNAPSHOT_METRICS:
            yield _family(metric, series(metric, snapshot))
        counted = [_without_created(family) for family in self._requests.registry.collect()]
        yield from counted
        for source in self.sources:
            yield from map(_as_in_catalogue, source.families())
        if vllm_model is not None:
            yield from vllm_families(snapshot, {family.name: family for family in counted}, vllm_model)


def _wants_openmetrics(accept: str) -> bool:
    """Whether it comes before plain text in the header. The library's own choice stumbles over odd versions."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind for kind in kinds if kind in (_OPENMETRICS, "text/plain")), "") == _OPENMETRICS


def _family(metric: Metric, values: Series) -> Family:
    make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = make(metric.family, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _as_in_catalogue(family: Family) -> Family:
    family.documentation = BY_FAMILY[family.name].help
    return family


def _without_created(family: Family) -> Family:
    """Without the time at which each series began, which nobody scrapes and which doubles the answer."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family
