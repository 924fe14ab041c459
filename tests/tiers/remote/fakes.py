"""A store of objects that is a dictionary, with a fault for every call; and a tier on a clock that is moved by hand."""

import random
from collections.abc import Callable, Sequence

from kvpager.errors import TierError
from kvpager.tiers.health import Health
from kvpager.tiers.remote.object_format import ObjectFormat
from kvpager.tiers.remote.object_store import Missing, ObjectStore
from kvpager.tiers.remote.retry import Retry
from kvpager.tiers.remote.store import RemoteStore
from kvpager.tiers.remote.verdicts import Verdicts
from kvpager.tiers.sealing import Packing, Seal

IDENTITY = bytes(range(32))


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class DictObjects:
    """``fault``: given the method's name, the error that every object of the call gets, or None."""

    url = "fake://host/0"

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.calls: list[tuple[str, int, float]] = []  # method, objects, seconds it was given
        self.fault: Callable[[str], TierError | None] = lambda method: None
        self.is_closed = False

    def get_many(self, names: Sequence[bytes], max_bytes: int, timeout: float) -> list[bytes | TierError]:
        error = self._begin("get", names, timeout)
        missing = Missing("not there")
        return [error or self.objects.get(name, missing) for name in names]

    def get_ranges(self, names: Sequence[bytes], start: int, size: int, timeout: float) -> list[bytes | TierError]:
        error = self._begin("get", names, timeout)
        found = [self.objects.get(name, b"")[start : start + size] for name in names]
        return [error or each or Missing("not there") for each in found]

    def put_many(self, names: Sequence[bytes], objects: Sequence[bytes], timeout: float) -> list[TierError | None]:
        error = self._begin("put", names, timeout)
        if error is None:
            self.objects.update(zip(names, objects, strict=True))
        return [error] * len(names)

    def exists_many(self, names: Sequence[bytes], timeout: float) -> list[bool | TierError]:
        error = self._begin("exists", names, timeout)
        return [error or name in self.objects for name in names]

    def delete_many(self, names: Sequence[bytes], timeout: float) -> list[TierError | None]:
        error = self._begin("delete", names, timeout)
        if error is None:
            for name in names:
                self.objects.pop(name, None)
        return [error] * len(names)

    def close(self) -> None:
        self.is_closed = True

    def _begin(self, method: str, names: Sequence[bytes], timeout: float) -> TierError | None:
        self.calls.append((method, len(names), timeout))
        return self.fault(method)


def make_store(
    objects: ObjectStore,
    clock: Hand,
    page_bytes: int,
    *,
    tries: int = 3,
    deadline: float = 1.0,
    max_moving: int = 64,
    identity: bytes = IDENTITY,
    packing: Packing | None = None,
    seal: Seal | None = None,
) -> RemoteStore:
    return RemoteStore(
        objects,
        ObjectFormat(page_bytes, identity, packing, seal),
        clock,
        Retry(clock, clock.sleep, random.Random(1).random, tries=tries),
        Health(clock),
        Health(clock),
        Verdicts(clock, there_for=300.0, absent_for=5.0, most=1000),
        prefix="test/",
        deadline=deadline,
        max_moving=max_moving,
    )
