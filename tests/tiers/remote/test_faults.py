"""O-21: a remote that is slow, silent or lying costs time, never an answer; it is skipped, and used again later.

Each fault is tried with Redis and with S3, against real servers behind a proxy that breaks the connections.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import NamedTuple

import numpy as np
import pytest

from kvpager.errors import TierError, WrongContent
from kvpager.tiers.remote import redis_store
from kvpager.tiers.remote.object_store import ErrorReply, ObjectStore, TooLate, Unreachable
from kvpager.tiers.remote.store import RemoteStore
from tests.contracts.lower_tier import PAGE_BYTES, content, key, page
from tests.tiers.remote.fakes import Hand, make_store
from tests.tiers.remote.servers import FaultProxy, redis_server, s3_server, s3_store

DEADLINE = 0.2  # seconds: what O-21 gives a load
LONG = 20.0
PAGES = range(1, 6)  # as many as failures that open the breaker


class Remote(NamedTuple):
    """``connect(port, host)``: a store of objects. ``error_reply``: what a server says that has a fault of its own."""

    connect: Callable[..., ObjectStore]
    proxy: FaultProxy
    direct: ObjectStore  # past the proxy
    error_reply: bytes


def connect_redis(port: int, host: str = "127.0.0.1") -> ObjectStore:
    return redis_store.RedisStore(f"redis://{host}:{port}/0")


def connect_s3(port: int, host: str = "127.0.0.1") -> ObjectStore:
    return s3_store(port, host)


@pytest.fixture(scope="module", params=["redis", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    is_redis = request.param == "redis"
    with redis_server(tmp_path_factory.mktemp("redis")) if is_redis else s3_server() as port:
        connect = connect_redis if is_redis else connect_s3
        proxy, direct = FaultProxy(port), connect(port)
        reply = b"-ERR no\r\n" if is_redis else b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"
        yield Remote(connect, proxy, direct, reply)
        direct.close()
        proxy.close()


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def objects(remote: Remote) -> Iterator[ObjectStore]:
    remote.proxy.set("")
    objects = remote.connect(remote.proxy.port)
    yield objects
    remote.proxy.set("")
    objects.close()


@pytest.fixture
def store(objects: ObjectStore, clock: Hand) -> RemoteStore:
    """Holds PAGES."""
    store = make_store(objects, clock, PAGE_BYTES, deadline=LONG)
    assert store_pages(store, PAGES) == [None] * len(PAGES)
    return store


def store_pages(store: RemoteStore, numbers: Sequence[int]) -> list[TierError | None]:
    slots = [slot for number in numbers if (slot := store.prepare_store(page(number))) is not None]
    errors = store.write(slots, [content(number) for number in numbers])
    for slot, error in zip(slots, errors, strict=True):
        store.complete_store(slot, error)
    store.check()
    return errors


def load(store: RemoteStore, number: int) -> np.ndarray | TierError | None:
    slot = store.prepare_load(key(number))
    if slot is None:
        return None
    into = np.zeros(PAGE_BYTES, np.uint8)
    (found,) = store.read([slot], [into])
    error = found if isinstance(found, TierError) else None
    store.complete_load(slot, error)
    store.check()
    return into if error is None else error


def fail_with(store: RemoteStore, expected: type[TierError], kind: str) -> None:
    """Each load fails, each is counted, and then the tier is skipped."""
    store._calls.deadline = DEADLINE if expected is TooLate else LONG
    for number in PAGES:
        assert store.statistics().state == "ok"
        assert type(load(store, number)) is expected
        assert load(store, number) is None  # not tried again
    statistics = store.statistics()
    assert statistics.state.startswith("failing: ")
    assert (statistics.failures, statistics.loaded.failed) == ({kind: len(PAGES)}, len(PAGES))
    assert store.contains(key(77)) is False


def recover(store: RemoteStore, clock: Hand) -> None:
    """After its wait the tier is asked again, and has all that it had."""
    store._calls.deadline = LONG
    clock.now += 6  # longer than the breaker's wait, and than a missed page counts as absent
    store.tick()
    asked = [key(number) for number in PAGES]
    assert [store.contains(each) for each in asked] == [None] * len(PAGES)
    store.learn(asked, store.probe(asked))
    for number in PAGES:
        found = load(store, number)
        assert isinstance(found, np.ndarray)
        assert (found == content(number)).all()
    assert store.statistics().state == "ok"


@pytest.mark.parametrize(
    ("fault", "expected", "kind"),
    [
        ("silent", TooLate, "late"),
        ("drip", TooLate, "late"),
        ("reset", Unreachable, "unreachable"),
    ],
)
def test_a_connection_that_fails(
    remote: Remote, store: RemoteStore, clock: Hand, fault: str, expected: type[TierError], kind: str
) -> None:
    remote.proxy.set(fault)
    fail_with(store, expected, kind)
    remote.proxy.set("")
    recover(store, clock)


def test_stores_fail_in_time_too(remote: Remote, store: RemoteStore, clock: Hand) -> None:
    store._calls.deadline = DEADLINE
    for fault in ("silent", "drip"):
        remote.proxy.set(fault)
        assert [type(error) for error in store_pages(store, [11, 12])] == [TooLate, TooLate]
        assert not store.contains(key(11))
    store._calls.deadline = LONG
    remote.proxy.set("")
    assert store_pages(store, [11, 12]) == [None, None]


def test_questions_fail_in_time_too(remote: Remote, store: RemoteStore, clock: Hand) -> None:
    store._calls.deadline = DEADLINE
    for fault in ("silent", "drip"):
        remote.proxy.set(fault)
        with pytest.raises(TooLate):
            store.probe([key(21), key(22)])
    store._calls.deadline = LONG
    remote.proxy.set("")
    assert store.probe([key(1), key(22)]) == [True, False]


def test_a_server_with_a_fault_of_its_own(remote: Remote, store: RemoteStore, clock: Hand) -> None:
    remote.proxy.set("reply", remote.error_reply)
    is_redis = remote.error_reply.startswith(b"-")
    fail_with(store, ErrorReply if is_redis else Unreachable, "error reply" if is_redis else "unreachable")
    remote.proxy.set("")
    recover(store, clock)


def test_a_server_that_talks_rubbish(remote: Remote, store: RemoteStore, clock: Hand) -> None:
    remote.proxy.set("reply", b"\0\xff rubbish\r\n" * 10)
    for number in PAGES:
        assert isinstance(load(store, number), TierError)
    assert store.statistics().state.startswith("failing: ")
    remote.proxy.set("")
    recover(store, clock)


def name(number: int) -> bytes:
    return b"test/" + key(number).hex().encode()


def page_of_another_key(remote: Remote, number: int) -> bytes:
    (found,) = remote.direct.get_many([name(number % len(PAGES) + 1)], 1 << 20, LONG)
    assert isinstance(found, bytes)
    return found


LIES: dict[str, Callable[[Remote, int], bytes]] = {
    "nothing but a byte": lambda remote, number: b"x",
    "cut short": lambda remote, number: own_page(remote, number)[:-1],
    "longer": lambda remote, number: own_page(remote, number) + b"x",
    "much longer": lambda remote, number: bytes(1 << 20),
    "another key": page_of_another_key,
    "a bit of the page": lambda remote, number: flipped(own_page(remote, number), -1),
    "a bit of the checksum": lambda remote, number: flipped(own_page(remote, number), 100),
}


def own_page(remote: Remote, number: int) -> bytes:
    (found,) = remote.direct.get_many([name(number)], 1 << 20, LONG)
    assert isinstance(found, bytes)
    return found


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_store_that_lies(
    remote: Remote, store: RemoteStore, clock: Hand, lie: Callable[[Remote, int], bytes]
) -> None:
    lies = [lie(remote, number) for number in PAGES]
    assert remote.direct.put_many([name(number) for number in PAGES], lies, LONG) == [None] * len(PAGES)
    store._calls.deadline = LONG
    for number in PAGES:
        assert isinstance(load(store, number), WrongContent)
    statistics = store.statistics()
    assert (statistics.quarantined, statistics.failures) == (len(PAGES), {"wrong content": len(PAGES)})
    assert statistics.state.startswith("failing: ")
    clock.now += 1000
    assert [store.contains(key(number)) for number in PAGES] == [False] * len(PAGES)  # never tried again
    assert store_pages(store, PAGES[:1]) == [None]  # but stored again, when it has been computed again
    assert isinstance(load(store, 1), np.ndarray)
    assert store.statistics().state == "ok"


def test_what_others_deleted_is_missed_and_nobody_is_to_blame(remote: Remote, store: RemoteStore) -> None:
    remote.direct.delete_many([name(number) for number in PAGES], LONG)
    assert [isinstance(load(store, number), TierError) for number in PAGES] == [True] * len(PAGES)
    statistics = store.statistics()
    assert (statistics.state, statistics.failures) == ("ok", {"missing": len(PAGES)})


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("case", ["nobody listens", "the name does not resolve"])
def test_a_server_that_is_not_there(remote: Remote, clock: Hand, case: str) -> None:
    host = "127.0.0.1" if case == "nobody listens" else "kvpager.invalid"
    objects = remote.connect(closed_port(), host)
    store = make_store(objects, clock, PAGE_BYTES, deadline=3.0)
    for number in PAGES:
        (error,) = store_pages(store, [number])
        assert isinstance(error, Unreachable | TooLate)  # late: where looking up a name takes its time
        assert isinstance(error, Unreachable) or host == "kvpager.invalid"
    assert store.statistics().state.startswith("stores are failing: ")
    objects.close()


def test_a_name_that_is_looked_up_for_ever_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Event()

    def hang(*args: object) -> None:
        release.wait()
        raise socket.gaierror("enough")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    objects = connect_redis(6379, "kvpager.invalid")
    (answer,) = objects.get_many([b"x"], 10, 0.05)
    release.set()
    objects.close()
    assert isinstance(answer, TooLate)


def test_a_connection_that_died_while_nobody_used_it_is_replaced(remote: Remote, store: RemoteStore) -> None:
    for _ in range(3):
        remote.proxy.set("")  # breaks those there are
        assert isinstance(load(store, 1), np.ndarray)
    assert store.statistics().failures == {}
