"""What is measured of requests as a client sees them. Called from the engine's thread and the event loop's alike.

Every call is one or a few observations of prometheus-client, which locks by itself: ``next_token``, which is called
for each token, is a single one.
"""

from kvpager.engine.request import FinishReason
from kvpager.errors import MissingExtra
from kvpager.metrics.catalogue import REQUEST_METRICS
from kvpager.metrics.metric import PREFIX, Metric, MetricKind

try:
    from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
except ImportError as error:
    raise MissingExtra("prometheus-client", "server", "counting requests") from error

_REFUSALS = ("queue_full", "invalid", "unavailable")  # have a series from the start, so that their rates do
_MAX_REASONS = 16  # series of refusals; a word too many is "other"


class RequestMetrics:
    """Counts and times of requests, in seconds. ``registry``: its own; the process's memory and CPU time are beside."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self._made = {metric.name.removeprefix(PREFIX): self._make(metric) for metric in REQUEST_METRICS}
        self._received = self._counter("requests_received_total")
        self._refused = self._counter("requests_refused_total")
        self._refusals = set(_REFUSALS)
        for reason in _REFUSALS:
            self._refused.labels(reason)
        finished = self._counter("choices_finished_total")
        self._finished = {reason: finished.labels(reason.value) for reason in FinishReason}
        self._first_token = self._histogram("time_to_first_token_seconds").observe
        self._next_token = self._histogram("inter_token_latency_seconds").observe
        self._per_token = self._histogram("time_per_output_token_seconds").observe
        self._queue_time = self._histogram("queue_time_seconds").observe
        self._seconds = self._histogram("request_seconds").observe
        self._prompt_tokens = self._histogram("request_prompt_tokens").observe
        self._generated_tokens = self._histogram("request_generated_tokens").observe

    def _make(self, metric: Metric) -> Counter | Histogram:
        if metric.kind is MetricKind.COUNTER:
            return Counter(metric.family, metric.help, metric.labels, registry=self.registry)
        return Histogram(metric.name, metric.help, registry=self.registry, buckets=metric.buckets)

    def _counter(self, name: str) -> Counter:
        made = self._made[name]
        assert isinstance(made, Counter)
        return made

    def _histogram(self, name: str) -> Histogram:
        made = self._made[name]
        assert isinstance(made, Histogram)
        return made

    # -- what happens -------------------------------------------------------------------------------------------------

    def came(self) -> None:
        """A request was taken in."""
        self._received.inc()

    def refused(self, reason: str) -> None:
        """``reason``: one of a fixed few words."""
        if reason not in self._refusals and len(self._refusals) >= _MAX_REASONS:
            reason = "other"
        self._refusals.add(reason)
        self._refused.labels(reason).inc()

    def queued(self, seconds: float) -> None:
        """How long a request waited before it was first admitted."""
        self._queue_time(seconds)

    def first_token(self, seconds: float) -> None:
        """Of a choice, since its request came."""
        self._first_token(seconds)

    def next_token(self, seconds: float) -> None:
        """Since the token before it of the same choice."""
        self._next_token(seconds)

    def ended(
        self,
        reason: FinishReason,
        prompt_tokens: int,
        generated_tokens: int,
        seconds: float,
        since_first: float | None = None,
    ) -> None:
        """A choice. ``seconds`` since its request came, ``since_first`` since its first token, if there was one."""
        self._finished[reason].inc()
        self._seconds(seconds)
        self._prompt_tokens(prompt_tokens)
        self._generated_tokens(generated_tokens)
        if since_first is not None and generated_tokens > 1:
            self._per_token(since_first / (generated_tokens - 1))
