"""O-21: a remote tier that is slow, silent or lying."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from kvpager import KVLayout, PagedCache, RemoteTier, assemble, open_cache
from kvpager.tiers.remote.redis_store import RedisStore
from kvpager.tiers.remote.store import RemoteStore
from kvpager.types import TierKind
from tests.stamp import Stamp, T, prefill
from tests.tiers.remote.fakes import Hand, make_store
from tests.tiers.remote.servers import FaultProxy, redis_server

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=64, dtype="bfloat16", page_size=8)
DEADLINE = 0.2
NEEDS_REMOTE = [T(1000 * at, 1000 * at + 20) for at in range(1, 11)]
OTHERS = [T(500_000 + 1000 * at, 500_000 + 1000 * at + 20) for at in range(1, 11)]


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        yield port


@pytest.fixture
def proxy(redis_port: int) -> Iterator[FaultProxy]:
    with redis.Redis(port=redis_port, protocol=2) as client:
        client.flushall()
    proxy = FaultProxy(redis_port)
    yield proxy
    proxy.close()


class Remote:
    """Opens caches above the server; ``store`` is the tier of the last one, on a clock that is moved by hand."""

    def __init__(self, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy, self.clock = proxy, Hand()
        self.store: RemoteStore | None = None
        self.deadline = 20.0
        monkeypatch.setattr(assemble, "_open_tier", self._open_tier)

    def _open_tier(self, options: RemoteTier, above: Any) -> RemoteStore:
        self.store = make_store(RedisStore(options.url), self.clock, above.page_bytes, deadline=self.deadline)
        return self.store

    def open(self) -> PagedCache:
        """A cache that knows nothing of what the last one stored."""
        return open_cache(
            LAYOUT,
            num_blocks=64,
            tiers=[RemoteTier(f"redis://127.0.0.1:{self.proxy.port}/0")],
            load_deadline=self.deadline,
            fingerprint=b"the weights",
            debug=True,
        )

    def fill(self) -> None:
        self.deadline = 20.0
        with self.open() as cache:
            stamp = Stamp(cache)
            for tokens in NEEDS_REMOTE:
                prefill(stamp, tokens).free()
                assert cache.lower is not None
                assert cache.lower.settle(60)

    def serve(self, deadline: float) -> tuple[int, str]:
        """The 20 requests: how many tokens came from the remote, and its state afterwards."""
        self.deadline, came = deadline, 0
        with self.open() as cache:
            assert self.store is not None
            stamp = Stamp(cache)
            for pair in zip(NEEDS_REMOTE, OTHERS, strict=True):
                for tokens in pair:
                    seq = prefill(stamp, tokens)
                    stamp.verify(seq)
                    cache.check()
                    came += seq.prefix_by_tier.get(TierKind.REMOTE, 0)
                    seq.free()
            return came, self.store.statistics().state


@pytest.fixture
def remote(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Remote:
    remote = Remote(proxy, monkeypatch)
    remote.fill()
    return remote


def test_a_remote_that_is_well_is_used(remote: Remote) -> None:
    assert remote.serve(20.0) == (10 * 16, "ok")


@pytest.mark.parametrize("fault", ["silent", "drip", "reset", "reply"])
def test_each_request_is_served_right_and_the_remote_is_left_alone(remote: Remote, fault: str) -> None:
    remote.proxy.set(fault, b"-ERR no\r\n")
    before = remote.proxy.connections
    came, state = remote.serve(DEADLINE)
    assert came == 0
    assert state.startswith("failing: ")
    assert remote.proxy.connections - before < 20  # skipped after five failures
    remote.proxy.set("")
    came, state = remote.serve(20.0)
    assert came >= 10 * 16  # more, where the fault let stores of the others through
    assert state == "ok"


def lies_of(found: list[bytes], lie: str) -> list[bytes]:
    if lie == "cut":
        return [each[:-1] for each in found]
    if lie == "a bit":
        return [each[:-1] + bytes([each[-1] ^ 1]) for each in found]
    return found[1:] + found[:1]


@pytest.mark.parametrize("lie", ["cut", "a bit", "the page of another key"])
def test_wrong_bytes_are_never_used(remote: Remote, redis_port: int, lie: str) -> None:
    with redis.Redis(port=redis_port, protocol=2) as client:
        names = sorted(client.keys())
        found = client.mget(names)
        client.mset(dict(zip(names, lies_of(found, lie), strict=True)))
    came, _ = remote.serve(20.0)
    assert came == 0
    assert remote.store is not None
    assert remote.store.statistics().quarantined >= 5
    assert remote.store.statistics().failures.keys() == {"wrong content"}
