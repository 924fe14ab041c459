"""One span a request: GenAI conventions, the caller's trace, no content, and a collector that may be dead."""

import logging
import socket
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import pytest

from kvpager.engine.request import Branch, BranchState, FinishReason, Request, TokenEvent
from kvpager.engine.sampling import SamplerRow
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import ConfigError
from kvpager.metrics.spans import Asked, Spans, traces_url
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind
from tests.metrics.collector import collecting

sdk = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs the extra otel")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def make_request(**sampling: object) -> Request:
    request = Request(1, 0, array("i", range(10)), Sampling(**sampling), 0, Scope(salt="secret"), 100)  # type: ignore[arg-type]
    for choice in range(request.sampling.n):
        row = SamplerRow.__new__(SamplerRow)
        branch = Branch(request, choice, choice, row, None, BranchState.FINISHED, output=[7, 8, 9])
        branch.prefix_by_tier = {TierKind.DEVICE: 4, TierKind.DISK: 2}
        branch.preemptions = 1
        request.branches.append(branch)
    request.started = perf_counter()
    return request


def finish(spans: Spans, request: Request, asked: Asked, reason: FinishReason = FinishReason.STOP) -> None:
    trace = spans.begin(asked, request)
    for branch in request.branches:
        trace.saw(TokenEvent(request.id, branch.choice, 7, "marker"))
        trace.saw(TokenEvent(request.id, branch.choice, 8, "marker", finish_reason=reason))


@contextmanager
def collected() -> Iterator[tuple[Spans, object]]:
    exporter = sdk.InMemorySpanExporter()
    spans = Spans("http://127.0.0.1:1", address="::1", port=8000, model=lambda: "tiny", exporter=exporter)
    yield spans, exporter
    spans.close()


def asked(**more: str) -> Asked:
    return Asked("chat", perf_counter() - 2.0, "chatcmpl-1", **more)


def test_a_span_says_what_the_conventions_ask_for() -> None:
    with collected() as (spans, exporter):
        finish(spans, make_request(n=2, temperature=0.5, seed=3, max_tokens=9), asked(session="s1"))
    (span,) = exporter.get_finished_spans()  # type: ignore[attr-defined]
    attributes = dict(span.attributes)
    assert (span.name, span.kind.name, span.status.is_ok) == ("chat tiny", "SERVER", True)
    assert 2e9 < span.end_time - span.start_time < 20e9
    assert abs(span.end_time - time.time_ns()) < 60e9
    assert 2.0 < attributes.pop("gen_ai.response.time_to_first_chunk") < 20.0
    assert 1.9 < attributes.pop("kvpager.queue_seconds") < 20.0
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "kvpager",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.conversation.id": "s1",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.response.finish_reasons": ("stop", "stop"),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 6,
        "server.address": "::1",
        "server.port": 8000,
        "kvpager.cached_tokens.device": 4,
        "kvpager.cached_tokens.disk": 2,
        "kvpager.preemptions": 2,
        "kvpager.faults.major": 0,
        "kvpager.faults.bytes": 0,
        "kvpager.faults.stalled_seconds": 0.0,
        "kvpager.attention": "exact",
        "kvpager.is_oversized": False,
    }
    assert span.resource.attributes["service.name"] == "kvpager"
    assert "marker" not in span.to_json()
    assert "secret" not in span.to_json()


def test_names_are_those_of_the_conventions() -> None:
    names = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for name, value in vars(names).items() if name.startswith("GEN_AI_")}
    with collected() as (spans, exporter):
        request = make_request(n=2, top_k=3, seed=1, presence_penalty=1.0, frequency_penalty=1.0)
        finish(spans, request, asked(session="s"))
    (span,) = exporter.get_finished_spans()  # type: ignore[attr-defined]
    assert {name for name in span.attributes if name.startswith("gen_ai.")} <= known


def test_the_callers_trace_goes_on() -> None:
    with collected() as (spans, exporter):
        finish(spans, make_request(), asked(traceparent=f"00-{TRACE}-{PARENT}-01"))
        finish(spans, make_request(), asked(traceparent=f"00-{TRACE}-{PARENT}-00"))  # it is not sampled
        finish(spans, make_request(), asked(traceparent="nonsense\r\n"))
    mine, own = exporter.get_finished_spans()  # type: ignore[attr-defined]
    assert (f"{mine.context.trace_id:032x}", f"{mine.parent.span_id:016x}") == (TRACE, PARENT)
    assert own.parent is None
    assert own.context.trace_id != mine.context.trace_id


def test_an_error_is_one() -> None:
    with collected() as (spans, exporter):
        finish(spans, make_request(), asked(), FinishReason.ERROR)
        finish(spans, make_request(), asked(), FinishReason.CANCELLED)
    failed, left = exporter.get_finished_spans()  # type: ignore[attr-defined]
    assert (failed.status.status_code.name, failed.attributes["error.type"]) == ("ERROR", "engine_error")
    assert (left.status.status_code.name, left.attributes["gen_ai.response.finish_reasons"]) == (
        "UNSET",
        ("cancelled",),
    )


def test_a_request_without_a_token_has_no_first_one() -> None:
    with collected() as (spans, exporter):
        request = make_request()
        request.started = None
        spans.begin(asked(), request).saw(TokenEvent(1, 0, None, "", finish_reason=FinishReason.CANCELLED))
    (span,) = exporter.get_finished_spans()  # type: ignore[attr-defined]
    assert not {"gen_ai.response.time_to_first_chunk", "kvpager.queue_seconds"} & set(span.attributes)


# -- collectors -----------------------------------------------------------------------------------------------------


def test_a_collector_gets_them_by_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpager.metrics.spans._EXPORT_SECONDS", 60.0)
    monkeypatch.setattr("kvpager.metrics.spans._CLOSE_SECONDS", 60.0)
    with collecting() as collector:
        spans = Spans(collector.url, address="127.0.0.1", port=8000, model=lambda: "tiny")
        for _ in range(3):
            finish(spans, make_request(), asked())
        spans.close()
    assert {path for path, _ in collector.posted} == {"/v1/traces"}
    assert [span.name for span in collector.spans()] == ["chat tiny"] * 3


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_dead_collector_costs_nothing(
    is_silent: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent: it takes the connection and never answers. Else: nobody is there. Who waited for it would do so longer
    than a test may take."""
    monkeypatch.setattr("kvpager.metrics.spans._EXPORT_SECONDS", 3600.0)
    monkeypatch.setattr("kvpager.metrics.spans._CLOSE_SECONDS", 0.3)
    monkeypatch.setattr("kvpager.metrics.spans.MOST_QUEUED", 64)
    monkeypatch.setattr("kvpager.metrics.spans.MOST_AT_ONCE", 32)
    caplog.set_level(logging.CRITICAL, "opentelemetry")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_silent:
            listener.listen()
        port = listener.getsockname()[1]
        spans = Spans(f"http://127.0.0.1:{port}", address="127.0.0.1", port=8000, model=lambda: "tiny")
        request = make_request()
        for _ in range(300):
            finish(spans, request, asked())
        assert len(spans._processor._batch_processor._queue) <= 64
        spans.close()


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "ftp://a", "http://", "http://a:0", "http://a:x", "http://a/?b"]
)
def test_what_is_no_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="give a collector's address"):
        traces_url(endpoint)


def test_the_path_of_traces_is_added() -> None:
    assert traces_url("http://a:4318") == traces_url("http://a:4318/") == "http://a:4318/v1/traces"
    assert traces_url("https://a/otlp/v1/traces") == "https://a/otlp/v1/traces"
