"""KV events on the wire: the documented format, and a subscriber that knows what the cache has, through gaps."""

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvpager import ConfigError, HostTier, KVLayout, LayerSpec, PagedCache, Scope, open_cache
from kvpager.cache.page_log import PageLog
from kvpager.metrics.kv_events import KVEventPublisher, check_endpoint
from kvpager.metrics.kv_replay import ReplayBuffer
from kvpager.metrics.kv_wire import Form, Translator, block_hash
from kvpager.prefix.hashing import Media
from kvpager.simulator.readers import read_trace
from kvpager.types import ContentKey, TierKind
from tests.cache.replayed import places
from tests.stamp import Stamp, T, prefill

msgpack = pytest.importorskip("msgpack", reason="needs the extra events")
zmq = pytest.importorskip("zmq", reason="needs the extra events")

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)
MIXED = KVLayout.mixed([LayerSpec(1, 32), LayerSpec(1, 32, window=6)], dtype="float32", page_size=4)
MEDIUM = {"GPU": TierKind.DEVICE, "CPU": TierKind.HOST}
STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
)
REMOVED = ("block_hashes", "medium")
PATIENCE = 60_000  # ms, reached only where something is broken


class Collect:
    """Translates at once. ``wire``: what would have been sent."""

    wants_content = has_room = True
    wants_uses = wants_new = False

    def __init__(self, layout: KVLayout, form: Form = Form.MAPS, **options: int) -> None:
        self.translator = Translator(layout, form, **options)
        self.wire: list = []

    def take(self, events: object) -> None:
        self.wire += self.translator.events(events)  # type: ignore[arg-type]


@contextmanager
def collected(layout: KVLayout = LAYOUT, form: Form = Form.MAPS, **options: object) -> Iterator[tuple]:
    with open_cache(layout, num_blocks=32, **options) as cache:  # type: ignore[arg-type]
        collect, log = Collect(layout, form), PageLog(cache, clock=lambda: 0.0)
        log.subscribe(collect)

        def drained() -> list:
            if cache.lower is not None:
                assert cache.lower.settle(60)
            log.drain()
            wire, collect.wire = collect.wire, []
            return wire

        yield cache, collect.translator, drained


# -- the format -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", Form)
def test_fields_are_those_of_the_documented_format_in_its_order(form: Form) -> None:
    with collected(form=form) as (cache, _, drained):
        prefill(Stamp(cache), T(1, 9)).free()
        keys = [block_hash(key) for key in cache.content_keys(T(1, 9))]
        (stored,) = drained()
        expected = (keys, None, T(1, 8), 4, None, "GPU", None, None)
        cache._reclaimer.make_free(32)
        (removed,) = drained()
        prefill(Stamp(cache), T(1, 9)).free()
        drained()
        cache.clear_prefix()
        (cleared,) = drained()
        if form is Form.ARRAYS:
            assert stored == ["BlockStored", *expected]
            assert removed == ["BlockRemoved", keys[::-1], "GPU"]
            assert cleared == ["AllBlocksCleared"]
        else:
            assert list(stored) == ["type", *STORED]
            assert stored == {"type": "BlockStored", **dict(zip(STORED, expected, strict=True))}
            assert removed == {"type": "BlockRemoved", "block_hashes": keys[::-1], "medium": "GPU"}
            assert cleared == {"type": "AllBlocksCleared"}


def test_a_hash_is_the_last_64_bits_of_the_key() -> None:
    assert block_hash(ContentKey(b"\x00" * 24 + b"\xff" + b"\x00" * 6 + b"\x01")) == 0xFF00000000000001
    assert msgpack.unpackb(msgpack.packb(2**64 - 1)) == 2**64 - 1


def test_a_page_that_follows_names_its_parent() -> None:
    with collected() as (cache, _, drained):
        prefill(Stamp(cache), T(1, 5)).free()
        drained()
        prefill(Stamp(cache), T(1, 9)).free()
        (stored,) = drained()
        first, second = (block_hash(key) for key in cache.content_keys(T(1, 9)))
        assert (stored["parent_block_hash"], stored["block_hashes"], stored["token_ids"]) == (first, [second], T(5, 8))


def test_scopes_are_named_and_salts_are_not() -> None:
    with collected() as (cache, _, drained):
        prefill(Stamp(cache), T(1, 9), scope=Scope(salt="secret", media=(Media(5, b"m" * 32),))).free()
        (stored,) = drained()
        (scope,), media = stored["extra_keys"]
        assert scope.startswith("kvpager-scope:")
        assert media == [(b"m" * 32).hex()]
        assert stored["token_ids"] == T(1, 8)
        assert "secret" not in str(stored)
        prefill(Stamp(cache), T(1, 9)).free()
        assert drained()[0]["extra_keys"] is None


def test_layer_groups_are_told_apart() -> None:
    with collected(MIXED) as (cache, _, drained):
        prefill(Stamp(cache), T(1, 9)).free()
        stored = drained()
        kinds = {(e["group_idx"], e["kv_cache_spec_kind"], e["kv_cache_spec_sliding_window"]) for e in stored}
        assert kinds == {(0, "full_attention", None), (1, "sliding_window", 6)}
        assert len({each for event in stored for each in event["block_hashes"]}) == 4


def test_a_tier_keeps_what_the_device_forgets() -> None:
    with collected(tiers=[HostTier(pages=16)]) as (cache, translator, drained):
        prefill(Stamp(cache), T(1, 9)).free()
        gpu, cpu = drained()
        assert (cpu["medium"], cpu["token_ids"], cpu["parent_block_hash"]) == ("CPU", T(1, 8), None)
        assert cpu["block_hashes"] == gpu["block_hashes"]
        cache.clear_prefix()
        assert drained() == [{"type": "BlockRemoved", "block_hashes": gpu["block_hashes"], "medium": "GPU"}]
        assert translator.everything() == [{"type": "AllBlocksCleared"}, cpu]
        cache.clear_tiers()
        assert drained() == [{"type": "AllBlocksCleared"}]
        assert translator.num_pages == translator._num_contents == 0


def test_remembered_token_ids_are_bounded() -> None:
    with open_cache(LAYOUT, num_blocks=32) as cache:
        collect, log = Collect(LAYOUT, most_tokens=8), PageLog(cache, clock=lambda: 0.0)
        log.subscribe(collect)
        prefill(Stamp(cache), T(1, 17)).free()
        log.drain()
        assert [event["token_ids"] for event in collect.wire] == [T(1, 8), []]
        assert [len(event["block_hashes"]) for event in collect.wire] == [2, 2]


@pytest.mark.parametrize("form", Form)
def test_events_that_are_written_down_can_be_replayed(form: Form, tmp_path: Path) -> None:
    """By the reader of vLLM's events: each line is a batch as it was sent, in JSON."""
    lines = []
    with collected(form=form, tiers=[HostTier(pages=16)]) as (cache, _, drained):
        for time, last in enumerate((9, 17, 13)):
            prefill(Stamp(cache), T(1, last)).free()
            lines.append(json.dumps(msgpack.unpackb(msgpack.packb([10.0 * time, drained(), 0]))))
            cache.clear_prefix()
            lines.append(json.dumps([10.0 * time + 5, drained(), 0]))
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(lines))
    trace = read_trace(file)
    assert (trace.page_tokens, trace.skipped_lines) == (4, 0)
    assert trace.num_pages.tolist() == [2, 4, 3]


# -- sockets --------------------------------------------------------------------------------------------------------


class Router:
    """A subscriber as a router has one: it decodes with plain msgpack, notices gaps and asks for what it missed."""

    def __init__(self, publisher: KVEventPublisher) -> None:
        self.context = zmq.Context()
        self.sub, self.ask = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        self.sub.connect(publisher.endpoint)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"kv-events")
        assert publisher.replay_endpoint is not None
        self.ask.connect(publisher.replay_endpoint)
        self.seq = -1
        self.replayed = 0
        self.pages: dict[str, set[int]] = {}

    def catch_up(self) -> None:
        """Asks for everything from the next number on."""
        self.ask.send_multipart([b"", struct.pack(">Q", self.seq + 1)])
        while True:
            assert self.ask.poll(PATIENCE), "no answer"
            empty, *topic, number, payload = self.ask.recv_multipart()
            assert (empty, topic) in ((b"", [b"kv-events"]), (b"", [b""]))
            seq = int.from_bytes(number, "big", signed=True)
            if seq == -1:
                assert payload == b""
                return
            if seq > self.seq:
                self.replayed += 1
                self.process(seq, payload)

    def follow(self, until: int) -> None:
        while self.seq < until:
            assert self.sub.poll(PATIENCE), "no message"
            _, number, payload = self.sub.recv_multipart()
            seq = int.from_bytes(number, "big")
            if seq > self.seq + 1:
                self.catch_up()
            if seq > self.seq:
                self.process(seq, payload)

    def process(self, seq: int, payload: bytes) -> None:
        self.seq = seq
        _, events, rank = msgpack.unpackb(payload)
        assert rank == 0
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.pages.clear()
                continue
            here = self.pages.setdefault(event["medium"], set())
            if event["type"] == "BlockStored":
                assert len(event["token_ids"]) in (0, 4 * len(event["block_hashes"]))
                here |= set(event["block_hashes"])
            else:
                assert set(event["block_hashes"]) <= here, "what was never stored is removed"
                here -= set(event["block_hashes"])

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(0)


def known(cache: PagedCache) -> dict[str, set[int]]:
    names = {tier: medium for medium, tier in MEDIUM.items()}
    return {names[tier]: set(map(block_hash, keys)) for tier, keys in places(cache).items() if keys}


@contextmanager
def published(cache: PagedCache, **options: object) -> Iterator[tuple[PageLog, KVEventPublisher]]:
    publisher = KVEventPublisher("tcp://127.0.0.1:*", "tcp://localhost:*", **options)  # type: ignore[arg-type]
    publisher.start(cache.layout)
    log = PageLog(cache, clock=lambda: 0.0)
    log.subscribe(publisher)
    try:
        yield log, publisher
    finally:
        log.unsubscribe(publisher)
        publisher.close()


def work(cache: PagedCache, log: PageLog, dice: random.Random, turns: int) -> None:
    for _ in range(turns):
        first = dice.choice([1, 21, 41, 61])
        prefill(Stamp(cache), T(first, first + dice.randint(4, 19))).free()
        if dice.random() < 0.05:
            cache.clear_prefix()
        if dice.random() < 0.05:
            cache.clear_tiers()
        assert cache.lower is not None
        cache.lower.collect()
        log.drain()


def sent(publisher: KVEventPublisher) -> int:
    """The number of the latest message, once all that was taken is sent."""
    for _ in range(12_000):
        if publisher._done == publisher._put and not publisher._queue:
            return publisher._buffer.next_seq - 1
        publisher._thread.join(0.005)  # type: ignore[union-attr]
    raise AssertionError("the publisher's thread hangs")


def test_a_subscriber_knows_what_the_cache_has_through_gaps() -> None:
    with open_cache(LAYOUT, num_blocks=12, tiers=[HostTier(pages=16)]) as cache:
        assert cache.lower is not None
        dice = random.Random(1)
        prefill(Stamp(cache), T(1, 20)).free()
        with published(cache) as (log, publisher), Router(publisher) as router:
            work(cache, log, dice, 10)
            router.catch_up()  # it joined late
            for turn in range(1, 6):
                work(cache, log, dice, 8)
                lost = router.sub.poll(PATIENCE) and router.sub.recv_multipart()  # a message that it does not get
                assert lost
                prefill(Stamp(cache), T(100 * turn, 100 * turn + 9)).free()
                assert cache.lower.settle(60)
                log.drain()
                router.follow(sent(publisher))
                assert {medium: pages for medium, pages in router.pages.items() if pages} == known(cache)
            counts = publisher.counts()
            assert counts.replays > 1
            assert router.replayed > 0
            assert (counts.refused, log.dropped) == (0, 0)


def test_whoever_missed_more_than_the_buffer_has_starts_anew() -> None:
    with open_cache(LAYOUT, num_blocks=12, tiers=[HostTier(pages=16)]) as cache:
        assert cache.lower is not None
        with published(cache, buffer=ReplayBuffer(most_batches=2)) as (log, publisher):
            work(cache, log, random.Random(2), 20)
            assert cache.lower.settle(60)
            log.drain()
            last = sent(publisher)
            with Router(publisher) as router:
                router.catch_up()
                assert (router.seq, router.replayed) == (last, 1)
                assert {medium: pages for medium, pages in router.pages.items() if pages} == known(cache)
                router.ask.send(b"nonsense!")
                router.catch_up()
                assert publisher.counts().refused == 1


def test_the_older_form_has_no_topic_in_replays() -> None:
    with open_cache(LAYOUT, num_blocks=12) as cache, published(cache, form=Form.ARRAYS) as (log, publisher):
        prefill(Stamp(cache), T(1, 9)).free()
        log.drain()
        sent(publisher)
        with Router(publisher) as router:
            router.ask.send_multipart([b"", struct.pack(">Q", 0)])
            assert router.ask.poll(PATIENCE)
            _, number, payload = router.ask.recv_multipart()
            assert number == bytes(8)
            assert msgpack.unpackb(payload)[1][0] == ["AllBlocksCleared"]


def test_a_publisher_that_falls_behind_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        open_cache(LAYOUT, num_blocks=32) as cache,
        published(cache) as (log, publisher),
        Router(publisher) as router,
    ):
        sent(publisher)
        with monkeypatch.context() as patch:
            patch.setattr("kvpager.metrics.kv_events.MOST_QUEUED", 0)
            prefill(Stamp(cache), T(1, 9)).free()
            log.drain()
            assert not publisher._queue
        prefill(Stamp(cache), T(21, 29)).free()
        log.drain()
        sent(publisher)
        router.catch_up()
        assert router.pages == known(cache) != {}


def test_what_nobody_asked_for_is_not_taken() -> None:
    """Bytes that are no ZMQ, and messages of a size that no subscriber sends."""
    with open_cache(LAYOUT, num_blocks=12) as cache, published(cache) as (log, publisher):
        assert publisher.replay_endpoint is not None
        for endpoint in (publisher.endpoint, publisher.replay_endpoint):
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=PATIENCE / 1000) as raw, suppress(ConnectionError):
                raw.sendall(b"\x80\x04cos\nsystem\n" * 100)
            with socket.create_connection((host, int(port)), timeout=PATIENCE / 1000) as raw, suppress(ConnectionError):
                raw.sendall(bytes(1 << 20))
                while raw.recv(4096):  # it is closed
                    pass
        with zmq.Context() as context, context.socket(zmq.DEALER) as big:
            big.linger = 0
            with big.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
                big.connect(publisher.replay_endpoint)
                big.send(bytes(1 << 20))
                assert monitor.poll(PATIENCE), "it was not disconnected"
                big.disable_monitor()
        with Router(publisher) as router:
            router.catch_up()
        assert publisher.counts().replays == 1
        assert log.failed == 0


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://eth0:1", "tcp://127.x:1"]
)
def test_an_open_address_needs_leave(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="other machines"):
        check_endpoint("events", endpoint, allow_open=False)
    assert check_endpoint("events", endpoint, allow_open=True) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["5557", "tcp://127.0.0.1", "tcp://:5557", "tcp://127.0.0.1:0", "udp://127.0.0.1:1", ""]
)
def test_what_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"give an address like tcp://127.0.0.1:5557"):
        check_endpoint("events", endpoint, allow_open=True)


def test_loopback_and_files_are_fine() -> None:
    for endpoint in ("tcp://127.0.0.1:*", "tcp://127.1.2.3:7", "tcp://[::1]:7", "ipc:///run/kv"):
        assert check_endpoint("events", endpoint, allow_open=False) == endpoint
    assert check_endpoint("events", "tcp://localhost:7", allow_open=False) == "tcp://127.0.0.1:7"


def test_an_address_that_is_taken_is_named() -> None:
    with open_cache(LAYOUT, num_blocks=12) as cache, published(cache) as (_, publisher):
        other = KVEventPublisher(publisher.endpoint)
        with pytest.raises(ConfigError, match="can't be bound: Address already in use"):
            other.start(LAYOUT)
