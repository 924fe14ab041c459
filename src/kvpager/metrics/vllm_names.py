"""The metrics that gateways and dashboards scrape of vLLM, under its names and with its labels and meanings.

What such software reads: the queue, the cache's use and size (to route), tokens and latencies (to scale and to show).
``usage`` is the share of blocks that are in use, without those that are only cached: they can be had at once. Hits and
queries are tokens. A cancelled request is ``abort``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from kvpager.metrics.snapshot import Snapshot

_FINISHED = {"cancelled": "abort"}


@dataclass(frozen=True, slots=True)
class _Read:
    """One value of a snapshot."""

    name: str
    help: str
    read: Callable[[Snapshot], float]


_GAUGES = (
    _Read("vllm:num_requests_running", "Choices in the batch.", lambda s: s.engine.running),
    _Read("vllm:num_requests_waiting", "Choices that wait to be processed.", lambda s: s.engine.waiting),
    _Read("vllm:kv_cache_usage_perc", "Share of blocks in use, 0 to 1.",
          lambda s: (s.cache.blocks.used + s.cache.blocks.moving) / s.cache.blocks.total),
)  # fmt: skip
_COUNTERS = (
    _Read("vllm:prefix_cache_queries", "Tokens looked up.", lambda s: s.cache.prefix.prompt_tokens),
    _Read("vllm:prefix_cache_hits", "Tokens found.", lambda s: s.cache.prefix.hit_tokens),
    _Read("vllm:prompt_tokens", "Prompt tokens processed.", lambda s: s.engine.prompt_tokens),
    _Read("vllm:generation_tokens", "Tokens generated.", lambda s: s.engine.generated_tokens),
    _Read("vllm:num_preemptions", "Preemptions.", lambda s: s.engine.preemptions),
)
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "kvpager_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "kvpager_inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds": "kvpager_inter_token_latency_seconds",  # the name it had before
    "vllm:request_time_per_output_token_seconds": "kvpager_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds": "kvpager_request_seconds",
    "vllm:request_queue_time_seconds": "kvpager_queue_time_seconds",
    "vllm:request_prompt_tokens": "kvpager_request_prompt_tokens",
    "vllm:request_generation_tokens": "kvpager_request_generated_tokens",
}


def vllm_families(snapshot: Snapshot, counted: Mapping[str, Family], model: str) -> Iterator[Family]:
    """``counted``: the families of RequestMetrics by name."""
    labels = {"model_name": model, "engine": "0"}
    for kind, rows in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for row in rows:
            family = kind(row.name, row.help, labels=list(labels))
            family.add_metric(list(labels.values()), row.read(snapshot))
            yield family
    for name, ours in _HISTOGRAMS.items():
        yield _copy(counted[ours], name, labels)
    yield _finished(counted["kvpager_choices_finished"], labels)
    yield _cache_config(snapshot, labels)


def _copy(family: Family, name: str, labels: Mapping[str, str]) -> Family:
    copied = Family(name, family.documentation, family.type)
    copied.samples = [
        Sample(name + sample.name.removeprefix(family.name), {**labels, **sample.labels}, sample.value)
        for sample in family.samples
    ]
    return copied


def _finished(family: Family, labels: Mapping[str, str]) -> Family:
    finished = CounterMetricFamily(
        "vllm:request_success", "Choices that ended, by how.", labels=[*labels, "finished_reason"]
    )
    for sample in family.samples:
        reason = sample.labels["reason"]
        finished.add_metric([*labels.values(), _FINISHED.get(reason, reason)], sample.value)
    return finished


def _cache_config(snapshot: Snapshot, labels: Mapping[str, str]) -> Family:
    """Always 1: its labels say how large the cache is. A page of several layer groups takes a block of each."""
    setting, cache = snapshot.setting, snapshot.cache
    config = {
        "block_size": str(setting.page_size),
        "num_gpu_blocks": str(cache.blocks.total // setting.num_groups),
        "kv_cache_memory_bytes": str(cache.blocks.total * cache.block_bytes),
    }
    family = GaugeMetricFamily("vllm:cache_config_info", "The cache's size.", labels=[*labels, *config])
    family.add_metric([*labels.values(), *config.values()], 1)
    return family
