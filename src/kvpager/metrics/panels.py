"""The panels of the dashboard: what is asked of Prometheus, under which title. Every metric of the catalogue is in one.

Most panels follow from the catalogue: a gauge is shown as it is, a counter as its rate, a histogram as quantiles, by
its labels. What says more together, or as a quotient, is written out here. ``SELECTOR`` and ``INTERVAL`` are Grafana's.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from kvpager.metrics.catalogue import BY_NAME, CATALOGUE
from kvpager.metrics.metric import PREFIX, Group, Metric, MetricKind

SELECTOR = 'job=~"$job",instance=~"$instance"'
INTERVAL = "$__rate_interval"
_QUANTILES = (0.5, 0.95, 0.99)
_RARE = "counts only what some requests or settings bring about, so that there may be no series"
_MAY_BE_EMPTY = {
    "kvpager_approximate_requests_total": _RARE,
    "kvpager_tier_failures_total": _RARE,
    "kvpager_pages_in_use_below": _RARE,
    "kvpager_kv_event_batches_total": _RARE,
    "kvpager_kv_event_replays_total": _RARE,
}


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """``unit``: Grafana's name. ``empty_because``: why there may be nothing to show; else there always is."""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    is_stacked: bool = False
    is_stat: bool = False
    empty_because: str = ""


def _of(name: str, **labels: str) -> str:
    """The series of a metric whose labels have these values: ``"used|moving"`` is either, ``"!device"`` any other."""
    metric = PREFIX + name
    known = BY_NAME.get(metric.removesuffix("_bucket"), BY_NAME.get(metric))
    assert known is not None, f"{metric} is not in the catalogue"
    assert set(labels) <= set(known.labels), f"{metric} has the labels {known.labels}"
    return f"{metric}{{{','.join([SELECTOR, *itertools.starmap(_match, labels.items())])}}}"


def _match(label: str, value: str) -> str:
    if value.startswith("!"):
        return f'{label}!="{value[1:]}"'
    return f'{label}{"=~" if "|" in value else "="}"{value}"'


def _rate(name: str, **labels: str) -> str:
    return f"rate({_of(name, **labels)}[{INTERVAL}])"


def _sum(expr: str, by: Iterable[str] = ()) -> str:
    return f"sum by ({', '.join(by)}) ({expr})"


def _quantile(name: str, quantile: float, by: Iterable[str] = ()) -> str:
    return f"histogram_quantile({quantile:g}, {_sum(_rate(f'{name}_bucket'), ['le', *by])})"


OVERVIEW = (
    Panel("Running", "Choices that are computed.", "short",
          (Query(_sum(_of("choices", state="running")), ""),), is_stat=True),
    Panel("Waiting", "Choices in the queue.", "short",
          (Query(_sum(_of("choices", state="waiting")), ""),), is_stat=True),
    Panel("Generated tokens", "A second.", "short", (Query(_sum(_rate("generated_tokens_total")), ""),), is_stat=True),
    Panel("Blocks in use", "Of the device's.", "percentunit",
          (Query(f"{_sum(_of('blocks', tier='device', state='used|moving'))}"
                 f" / {_sum(_of('capacity_blocks', tier='device'))}", ""),), is_stat=True),
    Panel("Prompt tokens found", "Share of those looked up.", "percentunit",
          (Query(f"{_sum(_rate('prefix_hit_tokens_total'))} / {_sum(_rate('prefix_lookup_tokens_total'))}", ""),),
          is_stat=True),
    Panel("Time to first token, p95", "From arrival.", "s",
          (Query(_quantile("time_to_first_token_seconds", 0.95), ""),), is_stat=True),
    Panel("Age of the engine's numbers", "Far over a second, it gives no sign of life.", "s",
          (Query(f"max({_of('snapshot_age_seconds')})", ""),), is_stat=True),
    Panel("Version", "Of what is scraped.", "short", (Query(_sum(_of("build_info"), ["version"]), "{{version}}"),),
          is_stat=True),
)  # fmt: skip

_TOGETHER: dict[Group, tuple[Panel, ...]] = {
    Group.POOL: (
        Panel("Blocks of the device", "By state; they add up to all there are.", "short",
              (Query(_sum(_of("blocks", tier="device"), ["state"]), "{{state}}"),), is_stacked=True),
        Panel("Blocks below the device", "By tier and state.", "short",
              (Query(_sum(_of("blocks", tier="!device"), ["tier", "state"]), "{{tier}} {{state}}"),),
              empty_because="a server without tiers below the device has none"),
        Panel("Share of held slots that no token fills", "Internal fragmentation.", "percentunit",
              (Query(f"{_sum(_of('waste_slots'))} / ({_sum(_of('blocks', tier='device', state='used'))}"
                     f" * avg({_of('page_size_tokens')}))", "waste"),)),
    ),
    Group.PREFIX: (
        Panel("Hit rate by tier", "Share of the tokens looked up that were found there.", "percentunit",
              (Query(f"{_sum(_rate('prefix_hit_tokens_total'), ['tier'])}"
                     f" / on () group_left () {_sum(_rate('prefix_lookup_tokens_total'))}", "{{tier}}"),),
              is_stacked=True),
    ),
    Group.ENGINE: (
        Panel("Prompt tokens by source", "Found in a tier, or computed.", "short",
              (Query(_sum(_rate("prompt_hit_tokens_total"), ["tier"]), "{{tier}}"),
               Query(_sum(_rate("prompt_computed_tokens_total")), "computed")), is_stacked=True),
        Panel("Queue", "Choices that wait, of those that may.", "short",
              (Query(_sum(_of("choices"), ["state"]), "{{state}}"), Query(_sum(_of("queue_capacity")), "may wait"))),
    ),
    Group.TIERS: (
        Panel("Share of each tier in use", "In bytes.", "percentunit",
              (Query(f"{_sum(_of('tier_used_bytes'), ['tier'])} / ({_sum(_of('tier_capacity_bytes'), ['tier'])} > 0)",
                     "{{tier}}"),)),
        Panel("Time to move a page", "Mean, by tier and direction.", "s",
              (Query(f"{_sum(_rate('migration_seconds_total'), ['tier', 'kind'])}"
                     f" / {_sum(_rate('migrations_total'), ['tier', 'kind'])}", "{{tier}} {{kind}}"),),
              empty_because="a server without tiers below the device has none"),
    ),
    Group.SERVER: (
        Panel("Memory of the process", "Resident.", "bytes",
              (Query(f"process_resident_memory_bytes{{{SELECTOR}}}", "{{instance}}"),)),
        Panel("CPU of the process", "Cores in use.", "short",
              (Query(f"rate(process_cpu_seconds_total{{{SELECTOR}}}[{INTERVAL}])", "{{instance}}"),)),
    ),
}  # fmt: skip


def panels() -> dict[Group, tuple[Panel, ...]]:
    """By row: what is written out, then a panel for every metric of the group."""
    return {
        group: (*_TOGETHER.get(group, ()), *(_panel(metric) for metric in CATALOGUE if metric.group is group))
        for group in Group
    }


def _panel(metric: Metric) -> Panel:
    name = metric.name.removeprefix(PREFIX)
    title = name.removesuffix("_total").replace("_", " ").capitalize()
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or "{{instance}}"
    by = metric.labels or ("instance",)
    empty = _MAY_BE_EMPTY.get(metric.name, "")
    if not empty and metric.group in (Group.TIERS, Group.BELOW):
        empty = "a server without tiers below the device has none"
    if metric.kind is MetricKind.HISTOGRAM:
        which = f"{legend} " if metric.labels else ""
        queries = tuple(Query(_quantile(name, each, metric.labels), f"{which}p{100 * each:g}") for each in _QUANTILES)
    elif metric.kind is MetricKind.COUNTER:
        queries = (Query(_sum(_rate(name), by), legend),)
    else:
        queries = (Query(_sum(_of(name), by), legend),)
    return Panel(title, metric.help, _unit(metric), queries, empty_because=empty)


def _unit(metric: Metric) -> str:
    name = metric.name.removesuffix("_total")
    if metric.kind is MetricKind.COUNTER:
        return "Bps" if name.endswith("_bytes") else "percentunit" if name.endswith("_seconds") else "cps"
    return "bytes" if name.endswith("_bytes") else "s" if name.endswith("_seconds") else "short"
