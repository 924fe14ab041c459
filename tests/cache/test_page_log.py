"""The page log says exactly what the books say, at every moment, whatever happens."""

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpager import ConfigError, DiskTier, HostTier, KVLayout, PagedCache, Scope, open_cache
from kvpager.cache.page_log import PageEvent, PageLog, What
from kvpager.prefix.hashing import Media
from kvpager.tiers.host import HostStore
from kvpager.types import ContentKey, NodeId, PageReason, TierKind
from tests.cache.replayed import Replay, on_device, places, watched
from tests.contracts.lower_tier import Watcher
from tests.properties.paged_world import PagedWorld
from tests.properties.world import SETTINGS, World
from tests.simulation import world as simulation
from tests.stamp import Stamp, T, prefill
from tests.tiers.disk.pages import open_store, put
from tests.tiers.remote.fakes import DictObjects, Hand, make_store

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)
DEVICE, HOST, DISK = TierKind.DEVICE, TierKind.HOST, TierKind.DISK


# -- any order of operations ----------------------------------------------------------------------------------------


class LoggedWorld(World):
    def __init__(self, setting: str, capacity: int) -> None:
        super().__init__(SETTINGS[setting])
        self.replay = Replay()
        self.log = watched(self.cache, self.replay, capacity=capacity)

    def run(self, name: str, integer: object) -> None:
        super().run(name, integer)  # type: ignore[arg-type]
        self.log.drain()
        assert self.replay.places[DEVICE] == on_device(self.cache)


@pytest.mark.parametrize("capacity", [1000, 2])
@pytest.mark.parametrize("setting", ["full and window", "youngest first"])
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_the_device_is_what_its_log_says(setting: str, capacity: int, seed: int) -> None:
    dice = random.Random(seed)
    world = LoggedWorld(setting, capacity)
    for name in SETTINGS[setting].operations(dice, 40):
        world.run(name, dice.randint)
    assert (world.log.dropped > 0) <= (capacity == 2)
    world.finish()


def test_a_log_that_misses_an_event_is_noticed() -> None:
    dice = random.Random(3)
    world = LoggedWorld("full", 1000)
    detach = world.cache.index.detach

    def detach_in_silence(block: int, why: PageReason = PageReason.EVICTED) -> NodeId:
        world.cache.index.watcher, watcher = None, world.cache.index.watcher
        left = detach(block, why)
        world.cache.index.watcher = watcher
        return left

    world.cache.index.detach = detach_in_silence  # type: ignore[method-assign]

    def run_all() -> None:
        for name in SETTINGS["full"].operations(dice, 400):
            world.run(name, dice.randint)

    with pytest.raises(AssertionError):
        run_all()


class LoggedSimulation(simulation.World):
    """Tiers that fail, hang, lose pages and are opened again. ``reasons``: what was told of each tier."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.capacity = capacity
        self.reasons: set[tuple[TierKind, PageReason | None]] = set()
        super().__init__(seed)

    def _open(self) -> None:
        super()._open()
        self.replay = Replay(uses=True)
        self.log = watched(self.cache, self.replay, capacity=self.capacity)

    def check(self) -> None:
        super().check()
        self.log.drain()
        assert self.replay.places == places(self.cache)
        self.reasons |= {(event.tier, event.reason) for event in self.replay.events}
        self.replay.events.clear()


def simulate(seeds: range, capacity: int) -> set[tuple[TierKind, PageReason | None]]:
    reasons = set()
    for seed in seeds:
        world = LoggedSimulation(seed, capacity)
        world.run()
        reasons |= world.reasons
    return reasons


def test_tiers_that_fail_are_what_their_log_says() -> None:
    reasons = simulate(range(3), 1000)
    assert {(DEVICE, PageReason.EVICTED), (DEVICE, PageReason.CLEARED), (DISK, PageReason.COPIED)} <= reasons
    assert (DEVICE, PageReason.LOST_COUNT) in simulate(range(1), 3)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1000, 5])
def test_more_tiers_that_fail_are_what_their_log_says(capacity: int) -> None:
    reasons = simulate(range(100, 125), capacity)
    assert {(HOST, PageReason.WRONG), (HOST, PageReason.EVICTED), (DISK, PageReason.FOUND)} <= reasons
    assert (TierKind.REMOTE, PageReason.COPIED) in reasons


class LoggedPaging(PagedWorld):
    """Running sequences whose pages go below and come back, under names that nobody else can find."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.replay = Replay()
        self.log = watched(self.cache, self.replay)

    def verify(self, model: object) -> None:
        super().verify(model)  # type: ignore[arg-type]
        self.log.drain()
        assert self.replay.places == places(self.cache)


def test_pages_of_running_sequences_are_where_the_log_says() -> None:
    reasons = set()
    for seed in (7, 8, 9):
        world = LoggedPaging(seed)
        world.run(100)
        reasons |= {(event.tier, event.reason) for event in world.replay.events}
    assert {(DEVICE, PageReason.PAGED_OUT), (HOST, PageReason.PRIVATE), (HOST, PageReason.FORGOTTEN)} <= reasons


# -- what an event says ---------------------------------------------------------------------------------------------


@contextmanager
def logged(**options: object) -> Iterator[tuple[PagedCache, Replay]]:
    with open_cache(LAYOUT, fingerprint=b"w", **{"num_blocks": 32, **options}) as cache:  # type: ignore[arg-type]
        replay = Replay(uses=True)
        log = watched(cache, replay)
        yield cache, replay
        log.drain()
        if log.failed == 0:
            assert replay.places == places(cache)


def drained(cache: PagedCache, replay: Replay) -> list[PageEvent]:
    """What has happened since the last time."""
    if cache.lower is not None:
        assert cache.lower.settle(60)
    assert cache.page_log is not None
    cache.page_log.drain()
    events, replay.events = replay.events, []
    return events


def of(events: list[PageEvent], what: What) -> list[PageEvent]:
    return [event for event in events if event.what is what]


def test_a_page_comes_with_its_content_its_parent_and_its_scope() -> None:
    with logged() as (cache, replay):
        prefill(Stamp(cache), T(1, 9)).free()
        stored = of(drained(cache, replay), What.STORED)
        keys = cache.content_keys(T(1, 9))
        assert [event.key for event in stored] == keys
        assert [event.content for event in stored] == [array("i", T(1, 4)).tobytes(), array("i", T(5, 8)).tobytes()]
        assert [event.scope for event in stored] == ["", None]
        assert stored[1].parent == keys[0]
        scope = Scope(salt="secret", media=(Media(1, b"m" * 32),))
        prefill(Stamp(cache), T(1, 9), scope=scope).free()
        first, second = of(drained(cache, replay), What.STORED)
        assert first.content is not None
        assert first.content.endswith(b"m" * 32)
        assert first.scope not in ("", None)
        assert second.parent == first.key != keys[0]
        assert "secret" not in f"{first}{second}"


def test_uses_are_told_to_whoever_wants_them() -> None:
    with logged() as (cache, replay):
        quiet = Replay()
        assert cache.page_log is not None
        cache.page_log.subscribe(quiet)
        drained(cache, replay)
        prefill(Stamp(cache), T(1, 10)).free()
        prefill(Stamp(cache), [*T(1, 6), 9, 9, 9]).free()  # half of the second page is found, and copied to be written
        events = drained(cache, replay)
        uses = [event.what for event in events if event.reason is None]
        assert uses[:7] == [What.DEMAND] * 3 + [What.RELEASED] * 2 + [What.HIT] * 2
        copy, source = of(events, What.COPIED)[0], of(events, What.STORED)[1]
        assert copy.key == source.key
        assert copy.block != source.block
        cache.page_log.unsubscribe(replay)
        quiet.events.clear()
        assert cache.evictable.uses is None
        prefill(Stamp(cache), T(1, 10)).free()
        cache.page_log.drain()
        assert of(quiet.events, What.HIT) == of(replay.events, What.HIT) == []
        cache.page_log.subscribe(replay)


def test_a_smaller_pool_moves_pages() -> None:
    with logged(num_blocks=8) as (cache, replay):
        first = prefill(Stamp(cache), T(1, 16))
        second = prefill(Stamp(cache), T(21, 29))
        first.free()
        drained(cache, replay)
        cache.resize(4)
        events = drained(cache, replay)
        assert {event.reason for event in of(events, What.REMOVED)} == {PageReason.EVICTED}
        assert {event.key for event in of(events, What.MOVED)} == set(cache.content_keys(T(21, 29)))
        second.free()


def test_new_weights_clear_the_device_with_one_event() -> None:
    with logged() as (cache, replay):
        prefill(Stamp(cache), T(1, 9)).free()
        drained(cache, replay)
        cache.set_fingerprint(b"v")
        assert [event.reason for event in drained(cache, replay)] == [PageReason.CLEARED]
        prefill(Stamp(cache), T(1, 9)).free()
        assert of(drained(cache, replay), What.STORED)[0].scope == ""


def test_a_disk_tier_tells_what_it_finds_loads_and_clears(tmp_path: Path) -> None:
    tiers = [HostTier(pages=16), DiskTier(tmp_path / "kv", "16 MiB")]
    with logged(tiers=tiers) as (cache, replay):
        prefill(Stamp(cache), T(1, 9)).free()
        stored = [(event.tier, event.reason) for event in of(drained(cache, replay), What.STORED)]
        copied = [(HOST, PageReason.COPIED)] * 2 + [(DISK, PageReason.COPIED)] * 2
        assert stored == [(DEVICE, PageReason.PUBLISHED)] * 2 + copied
    with logged(tiers=tiers) as (cache, replay):
        found = of(drained(cache, replay), What.STORED)
        assert [(event.tier, event.reason) for event in found] == [(DISK, PageReason.FOUND)] * 2
        assert {event.key for event in found} == set(cache.content_keys(T(1, 9)))
        prefill(Stamp(cache), T(1, 9)).free()
        events = drained(cache, replay)
        loaded = of(events, What.LOADED)
        assert [event.reason for event in of(events, What.STORED)][:2] == [PageReason.ARRIVED] * 2
        assert [(event.tier, event.key) for event in loaded] == [(DISK, key) for key in cache.content_keys(T(1, 9))]
        cache.clear_tiers()
        cleared = of(drained(cache, replay), What.CLEARED)
        assert [(event.tier, event.reason) for event in cleared] == [(k, PageReason.CLEARED) for k in (HOST, DISK)]


def test_a_page_with_wrong_content_is_gone() -> None:
    with logged(tiers=[HostTier(pages=16)]) as (cache, replay):
        prefill(Stamp(cache), T(1, 9)).free()
        drained(cache, replay)
        cache.clear_prefix()
        assert cache.lower is not None
        (host,) = cache.lower.migration.tiers
        assert isinstance(host, HostStore)
        host._arena.blocks[host.book._slot_of[cache.content_keys(T(1, 9))[0]]][0] ^= 1
        prefill(Stamp(cache), T(1, 9)).free()
        gone = of(drained(cache, replay), What.REMOVED)
        assert [(event.tier, event.reason) for event in gone] == [(HOST, PageReason.WRONG)]


def test_a_reader_of_a_folder_tells_what_it_finds_anew(tmp_path: Path) -> None:
    writer = open_store(tmp_path / "kv")
    put(writer, 1, 2)
    writer.sync()
    reader, watcher = open_store(tmp_path / "kv", read_only=True), Watcher()
    reader.watch(watcher)
    assert len(watcher.keys) == 2
    put(writer, 3)
    writer.sync()
    reader.refresh()
    assert watcher.keys == {page.key for page in reader.pages()}
    assert len(watcher.keys) == 3
    reader.close()
    writer.close()


def test_a_remote_tier_tells_what_it_believes() -> None:
    clock = Hand()
    store = make_store(DictObjects(), clock, 64)
    told: list[tuple[str, PageReason]] = []

    class Noting:
        def stored(self, key: ContentKey, why: PageReason, slot: int, *_: object) -> None:
            told.append((f"+{key[0]}", why))

        def removed(self, key: ContentKey, why: PageReason, slot: int) -> None:
            told.append((f"-{key[0]}", why))

    keys = [ContentKey(bytes([each]) * 32) for each in range(3)]
    store.learn(keys[:1], [True])
    store.watch(Noting())  # type: ignore[arg-type]
    store.learn(keys[1:], [True, False])
    store.learn(keys, [True, True, True])
    store.forget(keys[:1])
    store.tick()
    clock.sleep(1000)
    store.tick()
    learned, expired = PageReason.LEARNED, PageReason.EXPIRED
    assert told[:4] == [("+0", PageReason.FOUND), ("+1", learned), ("+2", learned), ("-0", PageReason.FORGOTTEN)]
    assert told[4:] == [("-1", expired), ("-2", expired)]


# -- subscribers ----------------------------------------------------------------------------------------------------


def test_nothing_is_noted_where_nobody_listens() -> None:
    with logged(tiers=[HostTier(pages=16)]) as (cache, replay):
        log = cache.page_log
        assert log is not None
        assert cache.lower is not None
        log.unsubscribe(replay)
        migration = cache.lower.migration
        assert (cache.page_log, cache.index.watcher, cache.evictable.uses, migration.watcher) == (None,) * 4
        prefill(Stamp(cache), T(1, 9)).free()
        assert cache.lower.settle(60)
        log.drain()
        assert log._events == []
        log.subscribe(replay)  # and is told what it has missed


def test_a_cache_has_one_log() -> None:
    with logged() as (cache, _), pytest.raises(ConfigError, match="subscribe to that one"):
        PageLog(cache, clock=lambda: 0.0).subscribe(Replay())


def test_a_subscriber_without_room_is_told_everything_later() -> None:
    with logged() as (cache, replay):
        drained(cache, replay)
        replay.has_room = False
        for first in range(1, 101, 10):
            prefill(Stamp(cache), T(first, first + 9)).free()
            assert drained(cache, replay) == []
        replay.has_room = True
        assert replay.places[DEVICE] != on_device(cache)
        drained(cache, replay)
        assert replay.places[DEVICE] == on_device(cache)


class Failing(Replay):
    def take(self, events: object) -> None:
        raise RuntimeError("a subscriber's own fault")


def test_a_subscriber_that_fails_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    with logged() as (cache, replay):
        log = cache.page_log
        assert log is not None
        log.subscribe(Failing())
        assert log.failed == 1
        assert [record.message for record in caplog.records] == ["Failing has failed (RuntimeError) and hears no more"]
        prefill(Stamp(cache), T(1, 9)).free()
        assert len(of(drained(cache, replay), What.STORED)) == 2
