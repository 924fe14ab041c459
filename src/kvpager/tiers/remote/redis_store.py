"""Objects as values of a Redis or Valkey server: one pipeline, one round trip, for each call.

Values are written with SET, with a time to live (EX) where one is asked for, and read with GETRANGE, which gives
no more than is asked for. What the server drops when it is full is its own affair (``maxmemory-policy``): with
``noeviction`` it refuses to store, which is a TierFull here.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut
from redis.retry import Retry as RedisRetry

from kvpager.errors import ConfigError, TierError, TierFull
from kvpager.tiers.remote.deadline_connection import DeadlineConnection, DeadlineSSLConnection, deadline
from kvpager.tiers.remote.object_store import ErrorReply, Missing, TooLate, Unreachable
from kvpager.tiers.remote.shown_url import shown_url

_PASSING = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "TRYAGAIN")  # first words of errors that end by themselves
_READ_BYTES = 1 << 20  # asked of the socket at once: values are pages


class RedisStore:
    """``url``: ``redis://``, or ``rediss://`` with TLS, with user and password if the server wants them. ``expire``:
    seconds until the server drops a value; None: never."""

    def __init__(self, url: str, expire: int | None = None) -> None:
        self.url = shown_url(url)
        self._expire = expire
        try:
            settings: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise ConfigError(f"{self.url} can't be read as the URL of a Redis server") from error
        is_tls = settings.pop("connection_class", None) is not None
        pool = redis.ConnectionPool(
            connection_class=DeadlineSSLConnection if is_tls else DeadlineConnection,
            **{
                "protocol": 2,
                "retry": RedisRetry(NoBackoff(), 0),  # ours knows the deadline
                "socket_read_size": _READ_BYTES,
                "socket_timeout": None,  # the deadline is the limit
                "socket_connect_timeout": None,
                **settings,
            },
        )
        self._client = redis.Redis(connection_pool=pool)

    def get_many(self, names: Sequence[bytes], max_bytes: int, timeout: float) -> list[bytes | TierError]:
        return self.get_ranges(names, 0, max_bytes + 1, timeout)

    def get_ranges(self, names: Sequence[bytes], start: int, size: int, timeout: float) -> list[bytes | TierError]:
        def ask(pipe: Any) -> None:
            for name in names:
                pipe.getrange(name, start, start + size - 1)

        return [self._bytes(reply) for reply in self._pipelined(ask, len(names), timeout)]

    def put_many(self, names: Sequence[bytes], objects: Sequence[bytes], timeout: float) -> list[TierError | None]:
        def ask(pipe: Any) -> None:
            for name, each in zip(names, objects, strict=True):
                pipe.set(name, each, ex=self._expire)

        return [self._error(reply) for reply in self._pipelined(ask, len(names), timeout)]

    def exists_many(self, names: Sequence[bytes], timeout: float) -> list[bool | TierError]:
        def ask(pipe: Any) -> None:
            for name in names:
                pipe.exists(name)

        replies = self._pipelined(ask, len(names), timeout)
        return [error if (error := self._error(reply)) is not None else bool(reply) for reply in replies]

    def delete_many(self, names: Sequence[bytes], timeout: float) -> list[TierError | None]:
        def ask(pipe: Any) -> None:
            for name in names:
                pipe.delete(name)

        return [self._error(reply) for reply in self._pipelined(ask, len(names), timeout)]

    def close(self) -> None:
        self._client.close()

    def _pipelined(self, ask: Callable[[Any], None], count: int, timeout: float) -> list[object]:
        """The replies to ``count`` commands; exceptions are replies too."""
        if count == 0:
            return []
        deadline.at = monotonic() + timeout
        try:
            with self._client.pipeline(transaction=False) as pipe:
                ask(pipe)
                replies: list[object] = pipe.execute(raise_on_error=False)
        except (RedisError, OSError, ValueError) as error:  # ValueError: what came is no reply at all
            return [self._error(error)] * count
        finally:
            deadline.at = float("inf")
        return replies

    def _bytes(self, reply: object) -> bytes | TierError:
        error = self._error(reply)
        if error is not None:
            return error
        if not isinstance(reply, bytes):
            return ErrorReply(f"{self.url} sent something that is no value", is_passing=False)
        return reply or Missing("the object is not there any more")

    def _error(self, reply: object) -> TierError | None:
        """Replies are shown by their kind only: their texts may name keys, users and hosts."""
        kind = type(reply).__name__
        if isinstance(reply, TierError):
            return reply
        if isinstance(reply, TimedOut | TimeoutError):
            return TooLate(f"{self.url} did not answer in time")
        if isinstance(reply, OutOfMemoryError):
            return TierFull(f"{self.url} has no room")
        if isinstance(reply, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
            return ErrorReply(f"{self.url} refuses the user or the password ({kind})", is_passing=False)
        if isinstance(reply, redis.exceptions.BusyLoadingError):
            return ErrorReply(f"{self.url} is loading its data", is_passing=True)
        if isinstance(reply, NoConnection | OSError):
            return Unreachable(f"{self.url} can't be reached ({kind})")
        if isinstance(reply, ResponseError):
            word = str(reply).split(" ", 1)[0]
            return ErrorReply(f"{self.url} answered with an error ({kind})", is_passing=word in _PASSING)
        if isinstance(reply, Exception):
            return ErrorReply(f"{self.url} sent something that is no answer ({kind})", is_passing=False)
        return None
