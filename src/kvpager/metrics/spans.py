"""One OpenTelemetry span for each request, sent to a collector by OTLP over HTTP. Off unless an address is given.

Attributes follow the GenAI semantic conventions; what they have no name for is under ``kvpager.``: where the prompt's
KV came from, faults, preemptions, waiting. No prompt, no answer and no key is ever in a span. A ``traceparent`` header
makes the span part of the caller's trace, or leaves it out where that trace is not sampled.

A span is made when its request has ended, and put into a bounded queue; a thread of the SDK sends what is there. With a
collector that does not answer, spans are dropped, and nothing waits for it but a moment at the end.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, time_ns
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvpager.engine.faults import NO_FAULTS
from kvpager.engine.request import FinishReason, Request, TokenEvent
from kvpager.engine.selection import NO_SELECTION
from kvpager.errors import ConfigError, MissingExtra
from kvpager.types import TierKind
from kvpager.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

MOST_QUEUED = 2048  # spans
MOST_AT_ONCE = 512
_EXPORT_SECONDS = 5.0  # for one batch
_CLOSE_SECONDS = 2.0
_PATH = "/v1/traces"
_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"

Value = str | int | float | bool | list[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a span says of a request that the engine does not know. ``operation``: "chat" or "text_completion";
    ``came``: in seconds of ``perf_counter``; ``label``: the answer's id; ``session``: what the client calls it."""

    operation: str
    came: float
    label: str = ""
    session: str = ""
    traceparent: str = ""


class RequestTrace:
    """Listens to one request on the engine's thread, and makes its span when the last choice has ended."""

    def __init__(self, spans: "Spans", asked: Asked, request: Request) -> None:
        self._spans = spans
        self.asked = asked
        self.request = request
        self.first_token: float | None = None
        self.ends: dict[int, FinishReason] = {}

    def saw(self, event: TokenEvent) -> None:
        if event.token is not None and self.first_token is None:
            self.first_token = perf_counter()
        if event.finish_reason is not None:
            self.ends[event.choice] = event.finish_reason
            if len(self.ends) == self.request.sampling.n:
                self._spans.ended(self)

    def attributes(self) -> dict[str, Value]:
        """REQUIRES: every choice has ended."""
        request, sampling, asked = self.request, self.request.sampling, self.asked
        found: dict[str, Value] = {
            "gen_ai.operation.name": asked.operation,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.input_tokens": len(request.prompt),
            "gen_ai.usage.output_tokens": sum(len(branch.output) for branch in request.branches),
            "gen_ai.response.finish_reasons": [self.ends[choice].value for choice in sorted(self.ends)],
            **self._own(),
        }
        if self.first_token is not None:
            found["gen_ai.response.time_to_first_chunk"] = self.first_token - asked.came
        optional: dict[str, tuple[Value | None, Value | None]] = {
            "gen_ai.request.choice.count": (sampling.n, 1),
            "gen_ai.request.top_k": (sampling.top_k, 0),
            "gen_ai.request.frequency_penalty": (sampling.frequency_penalty, 0.0),
            "gen_ai.request.presence_penalty": (sampling.presence_penalty, 0.0),
            "gen_ai.request.seed": (sampling.seed, None),
            "gen_ai.response.id": (asked.label, ""),
            "gen_ai.conversation.id": (asked.session, ""),
        }
        found |= {name: value for name, (value, usual) in optional.items() if value is not None and value != usual}
        return found

    def _own(self) -> dict[str, Value]:
        request = self.request
        by_tier: Mapping[TierKind, int] = request.branches[0].prefix_by_tier or {}
        faults = sum((branch.faults for branch in request.branches), NO_FAULTS)
        found: dict[str, Value] = {
            "gen_ai.usage.cache_read.input_tokens": sum(by_tier.values()),
            **{f"kvpager.cached_tokens.{tier.name.lower()}": tokens for tier, tokens in sorted(by_tier.items())},
            "kvpager.preemptions": sum(branch.preemptions for branch in request.branches),
            "kvpager.faults.major": faults.major,
            "kvpager.faults.bytes": faults.bytes,
            "kvpager.faults.stalled_seconds": faults.stalled_seconds,
            "kvpager.attention": request.attention,
            "kvpager.is_oversized": any(branch.was_slow for branch in request.branches),
        }
        selection = sum((branch.selection for branch in request.branches), NO_SELECTION)
        if selection.skipped_mass is not None:
            found |= {
                "kvpager.selection.steps": selection.steps,
                "kvpager.selection.skipped_mass": selection.skipped_mass,
                "kvpager.selection.digest_bytes": selection.digest_bytes,
                "kvpager.selection.kept_row_bytes": selection.kept_row_bytes,
            }
        if request.started is not None:
            found["kvpager.queue_seconds"] = request.started - self.asked.came
        return found


class Spans:
    """``endpoint``: of a collector, ``http://127.0.0.1:4318``. ``address``, ``port``: where the server listens.
    ``model``: what clients call it, asked with each span. ``exporter``: instead of OTLP over HTTP.

    Raises ConfigError for an endpoint that is no URL; MissingExtra.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        address: str,
        port: int,
        model: Callable[[], str],
        exporter: "SpanExporter | None" = None,
    ) -> None:
        url = traces_url(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingExtra(error.name or "opentelemetry-sdk", "otel", "sending spans") from None
        resource = Resource.create()
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "kvpager"}))
        self._exporter = exporter or OTLPSpanExporter(url, timeout=_EXPORT_SECONDS)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MOST_QUEUED, max_export_batch_size=MOST_AT_ONCE
        )
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._provider = provider
        self._tracer = provider.get_tracer("kvpager", __version__, schema_url=_SCHEMA)
        self._server: dict[str, Value] = {"server.address": address, "server.port": port}
        self._unix_offset = time_ns() - int(perf_counter() * 1e9)
        self._model = model

    # -- the engine's thread ------------------------------------------------------------------------------------

    def begin(self, asked: Asked, request: Request) -> RequestTrace:
        """A request was queued: tell the trace of its events."""
        return RequestTrace(self, asked, request)

    def ended(self, trace: RequestTrace) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        header, model = trace.asked.traceparent, self._model()
        parent = TraceContextTextMapPropagator().extract({"traceparent": header} if header else {})
        span = self._tracer.start_span(
            f"{trace.asked.operation} {model}",
            parent,
            SpanKind.SERVER,
            {
                "gen_ai.provider.name": "kvpager",
                "gen_ai.request.model": model,
                "gen_ai.response.model": model,
                **self._server,
                **trace.attributes(),
            },
            start_time=self._unix(trace.asked.came),
        )
        if FinishReason.ERROR in trace.ends.values():
            span.set_attribute("error.type", "engine_error")
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._unix(perf_counter()))

    def _unix(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._unix_offset

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sends what is queued, as far as that goes in a moment."""
        closing = threading.Thread(target=self._provider.shutdown, name="kvpager-spans-end", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()  # ends its tries to send again
            closing.join(_CLOSE_SECONDS)


def traces_url(endpoint: str) -> str:
    """Where OTLP takes spans. Raises ConfigError for what is no address of a collector."""
    parts = urlsplit(endpoint)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise ConfigError(f"option 'otel' can't be {endpoint!r}: give a collector's address like http://127.0.0.1:4318")
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH
