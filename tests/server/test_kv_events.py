"""What a running server tells of its pages: KV events on ZMQ, page metrics, journeys."""

import asyncio
import struct

import httpx
import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.engine.engine import Engine
from kvpager.errors import ConfigError
from kvpager.metrics.kv_wire import block_hash
from kvpager.server.app import create_app
from tests.cache.replayed import on_device
from tests.server.serving import Serving, serving

msgpack = pytest.importorskip("msgpack", reason="needs the extra events")
zmq = pytest.importorskip("zmq", reason="needs the extra events")

ADDRESS = "tcp://127.0.0.1:*"


def complete(server: Serving, prompt: str) -> None:
    body = {"model": server.service.model_name, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    httpx.post(server.url + "/v1/completions", json=body, timeout=60).raise_for_status()


def ask(server: Serving, what: object) -> object:
    """Runs it on the engine's thread, once what has happened so far is handed on."""
    result: list[object] = []

    def run(engine: Engine) -> None:
        assert engine.cache.page_log is not None
        engine.cache.page_log.drain()
        result.append(what(engine))  # type: ignore[operator]

    loop = server.service.thread._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(server.service.thread.call(run), loop).result(60)
    return result[0]


def everything(server: Serving) -> dict[str, set[int]]:
    """The pages by medium, as a router learns them that joins late."""
    publisher = server.service.page_events.publisher
    assert publisher is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(publisher.replay_endpoint)
        dealer.send_multipart([b"", struct.pack(">Q", 0)])
        pages: dict[str, set[int]] = {}
        while True:
            assert dealer.poll(60_000), "no answer"
            _, _, number, payload = dealer.recv_multipart()
            if number == b"\xff" * 8:
                return pages
            for event in msgpack.unpackb(payload)[1]:
                if event["type"] == "AllBlocksCleared":
                    pages.clear()
                elif event["type"] == "BlockStored":
                    pages.setdefault(event["medium"], set()).update(event["block_hashes"])
                else:
                    pages[event["medium"]] -= set(event["block_hashes"])


def test_a_router_learns_what_the_server_has(model: str) -> None:
    options = ServerOptions(port=0, events=ADDRESS, events_replay=ADDRESS)
    with serving(model, num_blocks=24, server=options) as server:
        publisher = server.service.page_events.publisher
        assert publisher is not None
        for prompt in ("the moon is far away from here", "the sun is near", "a cat and a dog and a cow and a bird"):
            complete(server, prompt)
        expected = ask(server, lambda engine: set(map(block_hash, on_device(engine.cache))))
        assert expected
        last = ask(server, lambda engine: publisher._put)
        assert isinstance(last, int)
        for _ in range(12_000):
            if publisher._done >= last:
                break
            publisher._thread.join(0.005)  # type: ignore[union-attr]
        assert everything(server) == {"GPU": expected}


def test_page_metrics_and_journeys(server: Serving, client: httpx.Client) -> None:
    complete(server, "one two three four five six seven eight nine ten")
    key = ask(server, lambda engine: next(reversed(on_device(engine.cache))))
    stops = server.service.page_events.journeys.of(key)  # type: ignore[arg-type]
    assert (stops[0].tier, stops[0].what) == ("device", "stored: published")
    text = client.get("/metrics").text
    assert "kvpager_page_events_dropped_total 0.0" in text
    assert "# TYPE kvpager_page_lifetime_seconds histogram" in text
    assert "kvpager_kv_event_batches" not in text


def test_events_are_off_unless_asked_for(server: Serving) -> None:
    assert server.service.page_events.publisher is None


def test_replays_without_events_stop_the_start() -> None:
    with pytest.raises(ConfigError, match="give an address for these too"):
        create_app(lambda: None, ServerOptions(events_replay=ADDRESS))  # type: ignore[arg-type, return-value]


def test_an_open_address_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="other machines"):
        create_app(lambda: None, ServerOptions(events="tcp://*:5557"))  # type: ignore[arg-type, return-value]
    create_app(lambda: None, ServerOptions(events="tcp://*:5557", allow_open_bind=True))  # type: ignore[arg-type, return-value]
