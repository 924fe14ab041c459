"""The stores of objects against real servers."""

from collections.abc import Iterator

import pytest
import redis

from kvpager import ConfigError
from kvpager.errors import TierFull
from kvpager.tiers.remote.object_store import ErrorReply
from kvpager.tiers.remote.obstore_store import ObstoreStore
from kvpager.tiers.remote.redis_store import RedisStore
from tests.contracts.object_store import LARGE, TIMEOUT, ObjectStoreContract
from tests.tiers.remote.servers import redis_server, s3_server, s3_store


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with redis_server(tmp_path_factory.mktemp("redis"), "--requirepass", "hidden") as port:
        yield port


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def client(redis_port: int) -> Iterator[redis.Redis]:
    """What an operator has."""
    with redis.Redis(port=redis_port, password="hidden", protocol=2) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        yield client
        client.config_set("maxmemory", 0)


class TestRedis(ObjectStoreContract):
    @pytest.fixture
    def store(self, redis_port: int, client: redis.Redis) -> Iterator[RedisStore]:
        store = RedisStore(f"redis://:hidden@127.0.0.1:{redis_port}/0")
        yield store
        store.close()

    def test_values_run_out_if_asked_to(self, redis_port: int, client: redis.Redis) -> None:
        for expire, seconds in ((None, -1), (1000, 1000)):
            store = RedisStore(f"redis://:hidden@127.0.0.1:{redis_port}/0", expire=expire)
            assert store.put_many([b"x"], [b"1"], TIMEOUT) == [None]
            assert seconds - 100 <= client.ttl("x") <= seconds
            store.close()

    def test_a_full_server_takes_no_more_but_still_gives(self, store: RedisStore, client: redis.Redis) -> None:
        self.put(store, {b"a": b"1"})
        client.config_set("maxmemory", 1)
        (answer,) = store.put_many([b"b"], [LARGE], TIMEOUT)
        assert isinstance(answer, TierFull)
        assert store.get_many([b"a"], 10, TIMEOUT) == [b"1"]
        client.config_set("maxmemory", 0)
        self.put(store, {b"b": LARGE})

    def test_a_value_of_another_kind_is_an_error_of_that_object_only(
        self, store: RedisStore, client: redis.Redis
    ) -> None:
        self.put(store, {b"a": b"1"})
        client.lpush("list", "secret content")
        got = store.get_many([b"list", b"a"], 10, TIMEOUT)
        assert isinstance(got[0], ErrorReply)
        assert (got[0].is_passing, got[1]) == (False, b"1")

    def test_a_wrong_password_is_told_and_not_shown(self, redis_port: int, client: redis.Redis) -> None:
        store = RedisStore(f"redis://:wrong-password@127.0.0.1:{redis_port}/0?socket_keepalive=1")
        (answer,) = store.get_many([b"a"], 10, TIMEOUT)
        assert isinstance(answer, ErrorReply)
        assert not answer.is_passing
        assert str(answer).startswith(f"redis://127.0.0.1:{redis_port}/0 refuses the user or the password")
        assert "wrong-password" not in str(answer)
        store.close()

    def test_connections_are_used_again(self, store: RedisStore, client: redis.Redis) -> None:
        self.put(store, {b"a": b"1"})
        before = client.info("stats")["total_connections_received"]
        for _ in range(10):
            assert store.get_many([b"a"], 10, TIMEOUT) == [b"1"]
        assert client.info("stats")["total_connections_received"] == before

    def test_a_url_that_makes_no_sense_is_refused_without_its_password(self) -> None:
        with pytest.raises(ConfigError, match="redis://host/0 can't be read") as refused:
            RedisStore("redis://:hidden@host/0?db=many")
        assert "hidden" not in str(refused.value)


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObstoreStore:
        return ObstoreStore("memory:///", TIMEOUT)


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3_port: int) -> ObstoreStore:
        store = s3_store(s3_port)
        store.delete_many([b"test/%064x" % at for at in range(3)], TIMEOUT)
        return store

    def test_a_bucket_that_is_not_there_has_no_objects_and_takes_none(self, s3_port: int) -> None:
        store = ObstoreStore(
            "s3://elsewhere",
            TIMEOUT,
            config={"endpoint": f"http://127.0.0.1:{s3_port}", "access_key_id": "name", "secret_access_key": "hidden"},
            client_options={"allow_http": True},
        )
        (answer,) = store.put_many([b"x"], [b"1"], TIMEOUT)
        assert answer is not None
        assert "hidden" not in str(answer)
        assert store.exists_many([b"x"], TIMEOUT) == [False]


def test_a_service_that_obstore_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't be opened as an object store"):
        ObstoreStore("s4://bucket", 1.0)
