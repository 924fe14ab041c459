"""Held pages of a tier, the requests of a step for their parts, and a tier that is stopped, slowed and failed."""

import ctypes
from collections.abc import Callable, Iterable
from threading import Event
from typing import Any

import numpy as np

from kvpager.checksum import checksum
from kvpager.errors import TierError
from kvpager.eviction.lru import LRU
from kvpager.tiers.host import HostStore
from kvpager.tiers.staging import PartRequest, Staged
from kvpager.tiers.tier import LowerTier, Page
from kvpager.types import ContentKey
from tests.contracts.lower_tier import key

LAYERS = 4


def host(page_bytes: int, num_slots: int = 64) -> HostStore:
    return HostStore(page_bytes, num_slots, LRU(num_slots))


class FaultyTier:
    """A tier whose parts wait for ``go``, can't be read (``errors``, by the number of the call), and are counted.

    ``part_alignment``: what it says it likes; it reads whatever it is asked for.
    """

    def __init__(self, inner: LowerTier, part_alignment: int = 1) -> None:
        self.inner: Any = inner
        self.part_alignment = part_alignment
        self.go = Event()
        self.go.set()
        self.begun = Event()
        self.errors: dict[int, BaseException] = {}
        self.num_calls = self.num_whole = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, slots: Any, into: Any) -> Any:
        self.num_whole += len(slots)
        return self.inner.read(slots, into)

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> list[TierError | None]:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        self.begun.set()
        assert self.go.wait(60)
        error = self.errors.get(number)
        if isinstance(error, TierError):
            return [error] * len(indices)
        if error is not None:
            raise error
        into[:] = 0
        there = into[:, : max(0, self.inner.page_bytes - start)]  # an enclosing range may end behind the page
        return self.inner.read_parts(indices, start, there)  # type: ignore[no-any-return]


class HeldPages:
    """``count`` pages of random bytes, stored in ``tier`` and held, with the columns that a sequence has of them."""

    def __init__(self, tier: Any, count: int, *, is_known: bool = True, seed: int = 1) -> None:
        self.tier = tier
        self.part_bytes = tier.page_bytes // LAYERS
        self.content = np.random.default_rng(seed).integers(0, 256, (count, tier.page_bytes)).astype(np.uint8)
        self.keys = [key(seed * 1000 + number) for number in range(count)]
        self.held = [self._store(*each) for each in zip(self.keys, self.content, strict=True)]
        self.slots = np.array([slot.index for slot in self.held], np.int32)
        self.checksums = np.zeros((count, LAYERS), np.uint64)
        self.is_known = np.full(count, is_known)
        if is_known:
            self.checksums[:] = self.sums()

    def _store(self, its_key: ContentKey, data: np.ndarray) -> Any:
        slot = self.tier.prepare_store(Page(its_key, ContentKey(bytes(32))))
        slot.checksum = checksum(data)
        if slot.memory is not None:
            slot.memory[:] = data
        else:
            assert self.tier.write([slot], [data]) == [None]
        self.tier.complete_store(slot, None)
        return self.tier.hold(its_key)

    def sums(self) -> np.ndarray:
        pages, layers = range(len(self.keys)), range(LAYERS)
        return np.array([[checksum(self.part(page, layer)) for layer in layers] for page in pages], np.uint64)

    def part(self, page: int, layer: int) -> np.ndarray:
        return self.content[page, layer * self.part_bytes : (layer + 1) * self.part_bytes]

    def request(self, layer: int, pages: Iterable[int]) -> PartRequest:
        those = np.array(list(pages), np.int64)
        size = self.part_bytes
        columns = (self.checksums, self.is_known, those)
        return PartRequest(self.tier.kind, self.slots[those], layer * size, size, layer, *columns)

    def is_right(self, request: PartRequest, staged: Staged) -> bool:
        """Whether every part without an error has its bytes."""
        return all(
            bytes_at(address, request.size) == self.part(page, request.layer_index).tobytes()
            for at, (page, address) in enumerate(zip(request.pages.tolist(), staged.addresses.tolist(), strict=True))
            if at not in staged.errors
        )

    def let_go(self, errors: Callable[[int], TierError | None] = lambda page: None) -> None:
        for page, slot in enumerate(self.held):
            self.tier.let_go(slot, errors(page))


def bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)
