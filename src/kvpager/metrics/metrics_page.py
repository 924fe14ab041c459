"""The documentation page of the metrics, made from their table."""

from kvpager.metrics.catalogue import CATALOGUE
from kvpager.metrics.metric import Group, Metric

_INTRODUCTION = """\
# Metrics

`GET /metrics` answers what Prometheus scrapes, in its text format, or in OpenMetrics where that is asked for. Where
API keys are in use it needs the key of an operator, since it tells of all tenants together.

```yaml
scrape_configs:
  - job_name: kvpager
    static_configs: [{targets: ["127.0.0.1:8000"]}]
    # authorization: {credentials_file: /etc/prometheus/kvpager-operator-key}
```

All numbers of the memory and the engine are read at one moment, between two steps, so they add up: blocks by state
are the blocks of a tier, prompt tokens are those computed and those found in each tier. They are those of the
scrape; where the engine is busy for more than two seconds, they are the last there are, and
`kvpager_snapshot_age_seconds` says how old. Counters never go down while a server runs. Labels have few values each:
never a request, a tenant, a prompt or anything else that clients choose.

Useful queries:

| question | query |
|---|---|
"""
_QUERIES = {
    "how full is the device": 'sum(kvpager_blocks{tier="device",state=~"used|moving"})'
    ' / sum(kvpager_capacity_blocks{tier="device"})',
    "hit rate": "sum(rate(kvpager_prefix_hit_tokens_total[5m])) / sum(rate(kvpager_prefix_lookup_tokens_total[5m]))",
    "time to first token, 95th percentile": "histogram_quantile(0.95,"
    " sum by (le) (rate(kvpager_time_to_first_token_seconds_bucket[5m])))",
    "tokens a second": "sum(rate(kvpager_generated_tokens_total[1m]))",
    "copies on write a second": 'rate(kvpager_faults_total{kind="copy_on_write"}[5m])',
    "pages a second that come up from lower tiers": 'rate(kvpager_faults_total{kind="major"}[5m])',
    "mean wait for such a page": 'rate(kvpager_fault_seconds_total{kind="major"}[5m])'
    ' / rate(kvpager_faults_total{kind="major"}[5m])',
}
_MORE = """\

`deploy/grafana/kvpager.json` is a dashboard with all of them, and `deploy/prometheus/kvpager.rules.yml` has alerts
([alerts](alerts.md)); `kvpager metrics dashboard` and `kvpager metrics rules` print both. `process_*` tell the memory
and CPU time of the process.

## Names of vLLM

With `--metrics-compat vllm` the names that gateways (Gateway API inference extension, llm-d) and dashboards scrape of
vLLM are shown beside, with the labels `model_name` and `engine`: `vllm:num_requests_running`,
`vllm:num_requests_waiting`, `vllm:kv_cache_usage_perc`, `vllm:prefix_cache_queries_total`,
`vllm:prefix_cache_hits_total`, `vllm:prompt_tokens_total`, `vllm:generation_tokens_total`,
`vllm:num_preemptions_total`, `vllm:request_success_total`, `vllm:cache_config_info` (`block_size`, `num_gpu_blocks`),
and the histograms `vllm:time_to_first_token_seconds`, `vllm:inter_token_latency_seconds` (and its former name
`vllm:time_per_output_token_seconds`), `vllm:request_time_per_output_token_seconds`,
`vllm:e2e_request_latency_seconds`, `vllm:request_queue_time_seconds`, `vllm:request_prompt_tokens` and
`vllm:request_generation_tokens`. Requests are choices there: one with `n=2` counts twice. The usage leaves out blocks
that are only cached, since they can be had at once. There are no adapters, and so no `vllm:lora_requests_info`.

This page is made from the table in `metrics/catalogue.py` by `kvpager metrics page`.
"""


def metrics_page() -> str:
    """The page docs/metrics.md: every metric by group, with kind, labels and meaning."""
    queries = "".join(f"| {question} | `{_in_table(query)}` |\n" for question, query in _QUERIES.items())
    return _INTRODUCTION + queries + _MORE + "".join(map(_section, Group))


def _in_table(query: str) -> str:
    return query.replace("|", "\\|")


def _section(group: Group) -> str:
    rows = "".join(_row(metric) for metric in CATALOGUE if metric.group is group)
    return f"\n## {group.value}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n{rows}"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |\n"
