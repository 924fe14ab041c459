"""The calls of a remote tier, in worker threads: pages to objects, and objects to pages. Knows no verdicts, no books.

Each call has so many seconds for all that it asks (``deadline``), trying again included. The slots of one call learn
that they were in it together, so that a call that fails is one failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from kvpager.errors import TierError, WrongContent
from kvpager.tiers.remote.object_format import HEADER_BYTES, ObjectFormat
from kvpager.tiers.remote.object_store import ObjectStore
from kvpager.tiers.remote.retry import Retry
from kvpager.tiers.tier import Slot
from kvpager.types import Clock, ContentKey

_DELETES_AT_ONCE = 1000  # what S3 takes in one request


@dataclass(slots=True)
class Ticket:
    """``begun``: when the transfer was prepared. ``call``: names the request of the worker that it was part of."""

    begun: float
    call: object = None


def ticket_of(slot: Slot) -> Ticket:
    assert isinstance(slot.place, Ticket)
    return slot.place


class RemoteCalls:
    """``prefix``: of all object names. ``deadline``: seconds of a call. ``read_seconds``, ``write_seconds``: that were
    spent so far. ``has_answered``: parts were read since somebody looked."""

    def __init__(
        self,
        objects: ObjectStore,
        object_format: ObjectFormat,
        clock: Clock,
        retry: Retry,
        prefix: str,
        deadline: float,
    ) -> None:
        self.deadline = deadline
        self._objects = objects
        self._format = object_format
        self._clock = clock
        self._retry = retry
        self._prefix = prefix.encode("ascii")
        self._forgotten: SimpleQueue[ContentKey] = SimpleQueue()
        self.read_seconds = self.write_seconds = 0.0
        self.has_answered = False

    def delete_later(self, key: ContentKey) -> None:
        """With the next question or store."""
        self._forgotten.put(key)

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        begin = self._clock()
        self.delete_forgotten()
        names = [self._object_name(key) for key in keys]

        def ask(some: list[int], timeout: float) -> list[bool | TierError]:
            return self._objects.exists_many([names[at] for at in some], timeout)

        answers = self._retry.run(ask, len(names), self._left(begin))
        for answer in answers:
            if isinstance(answer, TierError):
                raise answer
        return [answer is True for answer in answers]

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        begin = self._clock()
        names = self._sign(slots)

        def ask(some: list[int], timeout: float) -> list[bytes | TierError]:
            return self._objects.get_many([names[at] for at in some], self._format.max_bytes, timeout)

        answers = self._retry.run(ask, len(names), self._left(begin))
        found = [self._unwrap(*each) for each in zip(slots, answers, into, strict=True)]
        self.read_seconds += self._clock() - begin
        return found

    def read_parts(self, slots: Sequence[Slot], start: int, into: np.ndarray) -> list[TierError | None]:
        begin, size = self._clock(), into.shape[1]
        names = self._sign(slots)

        def ask(some: list[int], timeout: float) -> list[bytes | TierError]:
            return self._objects.get_ranges([names[at] for at in some], HEADER_BYTES + start, size, timeout)

        errors: list[TierError | None] = []
        for answer, row in zip(self._retry.run(ask, len(names), self._left(begin)), into, strict=True):
            if isinstance(answer, TierError):
                errors.append(answer)
            elif len(answer) != size:
                errors.append(WrongContent("an object is shorter than a page"))
            else:
                row[:] = np.frombuffer(answer, np.uint8)
                errors.append(None)
        self.has_answered |= None in errors
        return errors

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        begin = self._clock()
        names = self._sign(slots)
        self.delete_forgotten()
        wrapped = [self._wrap(slot, page) for slot, page in zip(slots, pages, strict=True)]
        results: list[TierError | None] = [each if isinstance(each, TierError) else None for each in wrapped]
        good = [(at, names[at], each) for at, each in enumerate(wrapped) if not isinstance(each, TierError)]

        def ask(some: list[int], timeout: float) -> list[TierError | None]:
            return self._objects.put_many([good[at][1] for at in some], [good[at][2] for at in some], timeout)

        answers: list[TierError | None] = self._retry.run(ask, len(good), self._left(begin))
        for (at, _, _), answer in zip(good, answers, strict=True):
            results[at] = answer
        self.write_seconds += self._clock() - begin
        return results

    def _object_name(self, key: ContentKey) -> bytes:
        return self._prefix + key.hex().encode("ascii")

    def _sign(self, slots: Sequence[Slot]) -> list[bytes]:
        """The names of a call's objects. Its slots learn that they were in it together."""
        call = object()
        for slot in slots:
            ticket_of(slot).call = call
        return [self._object_name(slot.key) for slot in slots]

    def _wrap(self, slot: Slot, page: np.ndarray) -> bytes | TierError:
        try:
            return self._format.wrap(slot.key, page, slot.checksum)
        except TierError as error:
            return error

    def _unwrap(self, slot: Slot, answer: bytes | TierError, target: np.ndarray) -> int | TierError:
        if isinstance(answer, TierError):
            return answer
        try:
            return self._format.unwrap(slot.key, answer, target)
        except TierError as error:
            return error

    def _left(self, begin: float) -> float:
        """Seconds that a worker has for what it began to do at ``begin``."""
        return max(0.001, begin + self.deadline - self._clock())

    def delete_forgotten(self) -> None:
        """Best effort, in half the time of a call: what stays is found again by somebody, and is right."""
        names: list[bytes] = []
        try:
            while len(names) < _DELETES_AT_ONCE:
                names.append(self._object_name(self._forgotten.get_nowait()))
        except Empty:
            pass
        if names:
            self._objects.delete_many(names, self.deadline / 2)

    def close(self) -> None:
        self.delete_forgotten()
        self._objects.close()
