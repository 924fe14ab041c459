"""What a scrape gets: text that parses, every metric of the table, nothing that goes down or names anybody."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from kvpager.engine.request import FinishReason
from kvpager.metrics.catalogue import BY_NAME, CATALOGUE, EVENT_METRICS, PAGE_METRICS
from kvpager.metrics.exposition import Exposition
from kvpager.metrics.metric import MetricKind
from kvpager.metrics.request_metrics import RequestMetrics
from kvpager.types import TierKind
from tests.metrics.snapshots import migration, pool, snapshot, tier

_OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def requests() -> RequestMetrics:
    return RequestMetrics()


def _plain(requests: RequestMetrics, **given: object) -> dict[str, Family]:
    exposition = Exposition(requests)
    body = exposition.render(snapshot(**given), now=0.0).body.decode()  # type: ignore[arg-type]
    return {family.name: family for family in parse_plain(body)}


def test_every_metric_of_the_table_is_shown_and_nothing_else_of_ours(requests: RequestMetrics) -> None:
    shown = _plain(requests, tiers=(tier(),), migration=migration())
    ours = {name for name in shown if name.startswith("kvpager_")}
    assert ours == {metric.family for metric in CATALOGUE if metric not in (*PAGE_METRICS, *EVENT_METRICS)}


def test_help_and_type_are_those_of_the_table(requests: RequestMetrics) -> None:
    shown = _plain(requests)
    for metric in (metric for metric in CATALOGUE if metric.family in shown):
        assert shown[metric.family].documentation == metric.help
        assert shown[metric.family].type == metric.kind.value


def test_openmetrics_where_it_is_asked_for(requests: RequestMetrics) -> None:
    exposition = Exposition(requests)
    rendered = exposition.render(snapshot(), now=0.0, accept=_OPEN)
    assert rendered.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert {"kvpager_faults", "kvpager_blocks"} <= {family.name for family in parse_open(rendered.body.decode())}
    assert exposition.render(snapshot(), now=0.0).content_type.startswith("text/plain; version=0.0.4")
    for odd in ("*/*", "text/html", "application/openmetrics-text; version=x", ";;,", "application/json"):
        assert exposition.render(snapshot(), now=0.0, accept=odd).body


def test_requests_are_counted_by_how_they_ended(requests: RequestMetrics) -> None:
    requests.came()
    requests.ended(FinishReason.STOP, 7, 3, 1.0, since_first=0.5)
    requests.ended(FinishReason.CANCELLED, 7, 0, 1.0)
    finished = {s.labels["reason"]: s.value for s in _plain(requests)["kvpager_choices_finished"].samples}
    assert finished == {"stop": 1, "cancelled": 1, "length": 0, "error": 0}


def test_times_are_seconds_and_land_in_their_buckets(requests: RequestMetrics) -> None:
    requests.queued(0.02)
    requests.first_token(0.2)
    requests.next_token(0.02)
    requests.ended(FinishReason.LENGTH, 100, 5, 4.0, since_first=2.0)
    shown = _plain(requests)

    def value(name: str, suffix: str, **labels: str) -> float:
        found = [s for s in shown[f"kvpager_{name}"].samples if s.name.endswith(suffix) and s.labels == labels]
        (sample,) = found
        return sample.value

    assert value("time_to_first_token_seconds", "_sum") == 0.2
    assert value("inter_token_latency_seconds", "_bucket", le="0.01") == 0
    assert value("inter_token_latency_seconds", "_bucket", le="0.025") == 1
    assert value("time_per_output_token_seconds", "_sum") == 0.5
    assert value("queue_time_seconds", "_count") == 1
    assert value("request_prompt_tokens", "_sum") == 100
    assert value("request_generated_tokens", "_sum") == 5


def test_refusals_by_reason_are_bounded(requests: RequestMetrics) -> None:
    for number in range(100):
        requests.refused(f"reason {number}")
    reasons = {s.labels["reason"]: s.value for s in _plain(requests)["kvpager_requests_refused"].samples}
    assert len(reasons) <= 17
    assert sum(reasons.values()) == 100


def test_other_sources_are_shown_beside(requests: RequestMetrics) -> None:
    class Ages:
        def families(self) -> Iterator[Family]:
            family = HistogramMetricFamily("kvpager_page_lifetime_seconds", "Ages.", labels=["tier"])
            family.add_metric(["device"], [("1.0", 2), ("+Inf", 3)], sum_value=7)
            yield family

    exposition = Exposition(requests)
    exposition.sources.append(Ages())
    text = exposition.render(snapshot(), now=0.0).body.decode()
    assert 'kvpager_page_lifetime_seconds_bucket{le="1.0",tier="device"} 2.0' in text
    assert f"# HELP kvpager_page_lifetime_seconds {BY_NAME['kvpager_page_lifetime_seconds'].help}\n" in text


def test_the_age_of_the_numbers_is_told(requests: RequestMetrics) -> None:
    text = Exposition(requests).render(snapshot(at=100.0), now=142.5).body.decode()
    assert "kvpager_snapshot_age_seconds 42.5\n" in text


def test_the_times_at_which_series_began_are_left_out(requests: RequestMetrics) -> None:
    assert b"_created" not in Exposition(requests).render(snapshot(), now=0.0).body


# -- vLLM's names -------------------------------------------------------------------------------------------------


def test_vllm_names_are_shown_only_if_wanted(requests: RequestMetrics) -> None:
    exposition = Exposition(requests)
    assert b"vllm:" not in exposition.render(snapshot(), now=0.0).body
    assert b"vllm:" in exposition.render(snapshot(), now=0.0, vllm_model="m").body


@pytest.mark.parametrize(("accept", "parse"), [("", parse_plain), (_OPEN, parse_open)], ids=["plain", "open"])
def test_vllm_names_have_vllm_values(requests: RequestMetrics, accept: str, parse: object) -> None:
    requests.first_token(0.2)
    requests.ended(FinishReason.CANCELLED, 7, 0, 1.0)
    shown = snapshot(
        engine={"running": 3, "waiting": 2, "prompt_tokens": 50, "generated_tokens": 9, "preemptions": 1},
        blocks=pool(200, used=50, cached=100, moving=10),
    )
    body = Exposition(requests).render(shown, now=0.0, accept=accept, vllm_model='a "name"').body.decode()
    samples = {}
    for family in parse(body):  # type: ignore[operator]
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                assert sample.labels.pop("model_name") == 'a "name"'
                assert sample.labels.pop("engine") == "0"
                samples[sample.name, *sorted(sample.labels.items())] = sample.value
    assert samples["vllm:num_requests_running",] == 3
    assert samples["vllm:num_requests_waiting",] == 2
    assert samples["vllm:kv_cache_usage_perc",] == 0.3
    assert samples["vllm:prompt_tokens_total",] == 50
    assert samples["vllm:generation_tokens_total",] == 9
    assert samples["vllm:num_preemptions_total",] == 1
    assert samples["vllm:request_success_total", ("finished_reason", "abort")] == 1
    assert samples["vllm:time_to_first_token_seconds_count",] == 1
    assert samples["vllm:e2e_request_latency_seconds_sum",] == 1
    config = {"block_size": "16", "num_gpu_blocks": "200", "kv_cache_memory_bytes": str(200 * 1024)}
    assert samples["vllm:cache_config_info", *sorted(config.items())] == 1


# -- never down ---------------------------------------------------------------------------------------------------


def test_a_counter_of_the_table_is_one_in_the_text(requests: RequestMetrics) -> None:
    for name, family in _plain(requests, tiers=(tier(TierKind.DISK),), migration=migration()).items():
        if family.type == "counter" and name.startswith("kvpager_"):
            assert BY_NAME[f"{name}_total"].kind is MetricKind.COUNTER


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian's package is prometheus)"
)
@pytest.mark.parametrize("vllm_model", [None, "m"], ids=["ours", "with vLLM's"])
def test_promtool_finds_nothing_to_say_about_our_text(requests: RequestMetrics, vllm_model: str | None) -> None:
    shown = snapshot(tiers=(tier(failures={"EIO": 1}),), migration=migration())
    body = Exposition(requests).render(shown, now=0.0, vllm_model=vllm_model).body

    def check(text: bytes) -> str:
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=200)
        return (done.stdout + done.stderr).decode()

    assert [line for line in check(body).splitlines() if line.startswith("kvpager_")] == []
    assert "kvpager_wrong" in check(body + b"# TYPE kvpager_wrong_ms counter\nkvpager_wrong_ms 1\n")  # the control
