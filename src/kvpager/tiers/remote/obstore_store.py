"""Objects in S3, Google Cloud Storage, Azure, or memory: one request each, many at a time, through obstore.

The requests of a call run in an event loop of its own in the worker thread, which ends them when their time is over,
whatever they wait for. Credentials come from where each service's own tools look for them (environment, metadata of the
machine).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import (
    BaseError,
    GenericError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from kvpager.errors import ConfigError, TierError, WrongContent
from kvpager.tiers.remote.object_store import ErrorReply, Missing, TooLate, Unreachable
from kvpager.tiers.remote.shown_url import shown_url

_AT_ONCE = 16  # requests of one call

Value = TypeVar("Value")


class ObstoreStore:
    """``url``: ``s3://bucket/prefix``, ``gs://``, ``az://account/container/prefix`` or ``memory:///``. ``options``
    go to ``obstore.store.from_url``. ``longest``: seconds that any request may take, whatever its call has."""

    def __init__(self, url: str, longest: float, **options: Any) -> None:
        self.url = shown_url(url)
        if not url.startswith("memory:"):
            options["client_options"] = {"timeout": timedelta(seconds=longest), **options.get("client_options", {})}
            options["retry_config"] = {"max_retries": 0}  # ours knows the deadline
        try:
            self._store = obstore.store.from_url(url, **options)
        except (BaseError, ValueError) as error:
            raise ConfigError(f"{self.url} can't be opened as an object store ({type(error).__name__})") from error

    def get_many(self, names: Sequence[bytes], max_bytes: int, timeout: float) -> list[bytes | TierError]:
        async def get(at: int) -> bytes:
            result = await obstore.get_async(self._store, names[at].decode("ascii"))
            if result.meta["size"] > max_bytes:
                raise WrongContent(f"an object has {result.meta['size']} bytes, more than {max_bytes}")
            return bytes(await result.bytes_async())

        return self._all(get, len(names), timeout)

    def get_ranges(self, names: Sequence[bytes], start: int, size: int, timeout: float) -> list[bytes | TierError]:
        async def get(at: int) -> bytes:
            return bytes(
                await obstore.get_range_async(self._store, names[at].decode("ascii"), start=start, length=size)
            )

        return self._all(get, len(names), timeout)

    def put_many(self, names: Sequence[bytes], objects: Sequence[bytes], timeout: float) -> list[TierError | None]:
        async def put(at: int) -> None:
            await obstore.put_async(self._store, names[at].decode("ascii"), objects[at], use_multipart=False)

        return self._all(put, len(names), timeout)

    def exists_many(self, names: Sequence[bytes], timeout: float) -> list[bool | TierError]:
        async def head(at: int) -> bool:
            await obstore.head_async(self._store, names[at].decode("ascii"))
            return True

        answers = self._all(head, len(names), timeout)
        return [False if isinstance(answer, Missing) else answer for answer in answers]

    def delete_many(self, names: Sequence[bytes], timeout: float) -> list[TierError | None]:
        async def delete(at: int) -> None:
            await obstore.delete_async(self._store, names[at].decode("ascii"))

        answers = self._all(delete, len(names), timeout)
        return [None if isinstance(answer, Missing) else answer for answer in answers]

    def close(self) -> None:
        pass

    def _all(self, request: Callable[[int], Awaitable[Value]], count: int, timeout: float) -> list[Value | TierError]:
        """``request(0 .. count-1)``, some at a time, and what has not come in time is late."""
        late = TooLate(f"{self.url} did not answer in time")
        answers: list[Value | TierError] = [late] * count

        async def ask(at: int, gate: asyncio.Semaphore) -> None:
            async with gate:
                try:
                    answers[at] = await request(at)
                except (TierError, BaseError, OSError, ValueError) as error:
                    answers[at] = self._error(error)

        async def ask_all() -> None:
            gate = asyncio.Semaphore(_AT_ONCE)
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.gather(*[ask(at, gate) for at in range(count)])
            except TimeoutError:
                pass

        if count:
            asyncio.run(ask_all())
        return answers

    def _error(self, error: Exception) -> TierError:
        """Errors are shown by their kind only: their texts name hosts, and parts of requests."""
        kind = type(error).__name__
        if isinstance(error, TierError):
            return error
        if isinstance(error, FileNotFoundError):
            return Missing("the object is not there any more")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return ErrorReply(f"{self.url} refuses the credentials ({kind})", is_passing=False)
        if isinstance(error, InvalidPathError | UnknownConfigurationKeyError):
            return ErrorReply(f"{self.url} can't be used as it is set up ({kind})", is_passing=False)
        if isinstance(error, GenericError | OSError):
            return Unreachable(f"{self.url} can't be reached, or failed ({kind})")
        return ErrorReply(f"{self.url} answered with an error ({kind})", is_passing=False)
