"""What a remote store of objects has to offer, and the ways in which it fails. Knows no pages and no headers.

Every call is made by a worker thread, asks for many objects at once, returns within ``timeout`` seconds whatever the
other side does, and raises nothing: each object has its own answer. The texts of errors name no credentials.
"""

from collections.abc import Sequence
from typing import Protocol

from kvpager.errors import TierError


class Unreachable(TierError):
    """No connection, or it broke. Worth another try."""


class TooLate(TierError):
    """No whole answer in time."""


class ErrorReply(TierError):
    """The store answered, but with an error."""

    def __init__(self, text: str, is_passing: bool) -> None:
        super().__init__(text)
        self.is_passing = is_passing  # worth another try


class Missing(TierError):
    """The object is not there."""


class ObjectStore(Protocol):
    """``url``: what to call it in messages; no user info, no query."""

    url: str

    def get_many(self, names: Sequence[bytes], max_bytes: int, timeout: float) -> list[bytes | TierError]:
        """The objects, or why not; ``Missing`` if there is none of that name.

        Of an object longer than ``max_bytes``: a part that is longer too, or WrongContent, so that no object makes this
        process take much more memory than it asked for.
        """
        ...

    def get_ranges(self, names: Sequence[bytes], start: int, size: int, timeout: float) -> list[bytes | TierError]:
        """Bytes ``start`` to ``start + size`` of each object, fewer where it ends before; an error where none are
        left."""
        ...

    def put_many(self, names: Sequence[bytes], objects: Sequence[bytes], timeout: float) -> list[TierError | None]:
        """Stores whole objects in place of those there are. An object that failed may all the same have arrived."""
        ...

    def exists_many(self, names: Sequence[bytes], timeout: float) -> list[bool | TierError]: ...

    def delete_many(self, names: Sequence[bytes], timeout: float) -> list[TierError | None]:
        """Deletes objects; those that are not there are no error."""
        ...

    def close(self) -> None: ...


def is_passing(error: object) -> bool:
    """Whether another try may well succeed."""
    return isinstance(error, Unreachable) or (isinstance(error, ErrorReply) and error.is_passing)
