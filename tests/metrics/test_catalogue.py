"""The table of metrics keeps Prometheus' rules, and its readings of a snapshot add up."""

import re

import pytest

from kvpager.cache.statistics import PrefixCounts
from kvpager.metrics.catalogue import BY_NAME, CATALOGUE, SNAPSHOT_METRICS
from kvpager.metrics.metric import LABELS, Metric, MetricKind, Series, series
from kvpager.types import TierKind
from tests.metrics.snapshots import migration, pool, snapshot, tier

_UNITS = ("seconds", "bytes", "tokens", "pages", "blocks", "slots")


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_and_labels_keep_the_rules(metric: Metric) -> None:
    assert re.fullmatch(r"kvpager_[a-z][a-z_]*[a-z]", metric.name)
    assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
    assert set(metric.labels) <= set(LABELS)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    if metric.kind is MetricKind.HISTOGRAM:
        assert metric.name.endswith(_UNITS)
    for abbreviation in ("_ms", "_kb", "_mb", "_percent", "_ratio_pct"):
        assert not metric.name.endswith(abbreviation)


def test_names_are_given_once() -> None:
    assert len(BY_NAME) == len(CATALOGUE)


@pytest.mark.parametrize("metric", SNAPSHOT_METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("has_tiers", [False, True], ids=["pool alone", "with tiers"])
def test_every_reading_has_a_value_for_each_of_its_labels(metric: Metric, has_tiers: bool) -> None:
    tiers = (tier(), tier(TierKind.DISK, failures={"ENOSPC": 2})) if has_tiers else ()
    found = series(metric, snapshot(tiers=tiers, migration=migration() if has_tiers else None))
    assert all(len(labels) == len(metric.labels) for labels in found)
    assert all(isinstance(value, (int, float)) and value >= 0 for value in found.values())


def _read(name: str, **cache: object) -> Series:
    return series(BY_NAME[f"kvpager_{name}"], snapshot(**cache))  # type: ignore[arg-type]


def test_blocks_by_state_are_the_blocks_of_the_tier() -> None:
    blocks = _read("blocks", blocks=pool(100, used=30, cached=20, moving=5), tiers=(tier(),))
    of_device = {state: count for (where, state), count in blocks.items() if where == "device"}
    assert of_device == {"free": 45, "used": 30, "cached": 20, "moving": 5}
    capacity = _read("capacity_blocks", tiers=(tier(),))
    assert capacity == {("device",): 100, ("host",): 10}
    assert sum(count for (where, _), count in blocks.items() if where == "host") == 10


def test_prompt_tokens_are_computed_or_found() -> None:
    made = {"prompt_tokens": 100, "prefix_tokens": 40, "prefix_by_tier": {TierKind.DEVICE: 10, TierKind.DISK: 30}}
    shown = snapshot(engine=made, tiers=(tier(TierKind.DISK),))
    hits = series(BY_NAME["kvpager_prompt_hit_tokens_total"], shown)
    (computed,) = series(BY_NAME["kvpager_prompt_computed_tokens_total"], shown).values()
    assert hits == {("device",): 10, ("disk",): 30}
    assert sum(hits.values()) + computed == 100


def test_hits_of_all_tiers_that_there_are_have_a_series_from_the_start() -> None:
    hits = _read("prefix_hit_tokens_total", prefix=PrefixCounts(1, 9, 0, {}), tiers=(tier(), tier(TierKind.DISK)))
    assert hits == {("device",): 0, ("host",): 0, ("disk",): 0}


def test_what_clients_choose_makes_no_series() -> None:
    words = {f"selective:budget={number}": 1 for number in range(1000)}
    metric = BY_NAME["kvpager_approximate_requests_total"]
    assert series(metric, snapshot(engine={"approximate_requests": words})) == {("selective",): 1000}


def test_reasons_of_failures_are_few_and_plain_words() -> None:
    reasons = {f"word{chr(97 + number)}".replace("word", "w"): 1 for number in range(26)}
    many = _read("tier_failures_total", tiers=(tier(failures=reasons),))
    assert len(many) == 17
    assert many["host", "other"] == 10
    secret = _read("tier_failures_total", tiers=(tier(failures={"/a/path/4f2c": 3}),))
    assert secret == {("host", "other"): 3}
