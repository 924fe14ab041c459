"""A running server sends one span for each request, and none unless it is told where to."""

import httpx
import pytest

from kvpager.config.server_options import ServerOptions
from tests.metrics.collector import collecting
from tests.server.serving import Serving, serving

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests_are_traced(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpager.metrics.spans._EXPORT_SECONDS", 60.0)
    monkeypatch.setattr("kvpager.metrics.spans._CLOSE_SECONDS", 60.0)
    with collecting() as collector:
        options = ServerOptions(port=0, otel=collector.url, served_name="tiny")
        with serving(model, server=options) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            ask = {"model": "tiny", "max_tokens": 4, "temperature": 1.0, "n": 2}
            header = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-session-id": "walk"}
            prompt = "over the hills and far away"
            client.post("/v1/completions", json={**ask, "prompt": prompt}, headers=header).raise_for_status()
            chat = {**ask, "messages": [{"role": "user", "content": prompt}]}
            answer = client.post("/v1/chat/completions", json=chat).raise_for_status().json()
            assert client.post("/v1/completions", json={**ask, "prompt": []}).status_code == 400
        completion, chatted = collector.spans()
    assert (completion.name, chatted.name) == ("text_completion tiny", "chat tiny")
    assert (completion.trace_id.hex(), completion.parent_span_id.hex()) == (TRACE, PARENT)
    assert chatted.parent_span_id == b""
    values = {each.key: each.value for each in chatted.attributes}
    assert values["gen_ai.response.id"].string_value == answer["id"]
    assert values["gen_ai.usage.output_tokens"].int_value == answer["usage"]["completion_tokens"]
    assert values["gen_ai.usage.input_tokens"].int_value == answer["usage"]["prompt_tokens"]
    assert b"hills" not in b"".join(body for _, body in collector.posted)


def test_nothing_is_traced_unless_asked_for(server: Serving) -> None:
    assert server.service.thread._side.spans is None
