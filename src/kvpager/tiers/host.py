"""The host tier: copies of pages in ordinary memory. On CUDA the memory is pinned; on CPU huge pages are advised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvpager.checksum import copy_checksums
from kvpager.errors import ConfigError, InvariantError, TierError, WrongContent
from kvpager.eviction.policy import EvictionPolicy, History
from kvpager.memory.arena import HostArena
from kvpager.tiers.slot_book import SlotBook
from kvpager.tiers.tier import Page, Slot, TierStatistics, TierUsage, TransferCounts
from kvpager.tiers.watcher import TierWatcher, why_unreadable
from kvpager.types import ContentKey, TierKind

_HUGE_PAGE = 2 << 20  # memory is taken in these steps


@dataclass(frozen=True, slots=True)
class Pinning:
    """Tells the device's driver that memory (address, bytes) stays in place, and that it may go again."""

    pin: Callable[[int, int], None]
    unpin: Callable[[int], None]


class HostStore:
    """``num_slots`` pages of ``page_bytes``. ``policy`` says which goes first. ``pinning``: for a GPU that copies.
    ``exclusive``: holds no page that came up from it."""

    kind = TierKind.HOST
    name = "host"
    is_persistent = False
    load_threads = store_threads = 1  # a copy by one thread takes most of what memory gives
    part_alignment = 1

    def __init__(
        self,
        page_bytes: int,
        num_slots: int,
        policy: EvictionPolicy,
        pinning: Pinning | None = None,
        *,
        exclusive: bool = False,
    ) -> None:
        self.page_bytes = page_bytes
        self.is_exclusive = exclusive
        self._arena = HostArena(num_slots, page_bytes)
        self._pinning = pinning
        if pinning is not None:
            pinning.pin(self._arena.address, num_slots * page_bytes)
        self._book = SlotBook(num_slots, policy)
        self._checksums = [0] * num_slots
        self._held: dict[int, Slot] = {}
        self._touched = 0  # slots ever written: their memory is held until the tier is closed
        self._stored, self._loaded = TransferCounts(), TransferCounts()
        self._refused = self._declined = self._quarantined = 0

    @staticmethod
    def slots_in(capacity_bytes: int, page_bytes: int) -> int:
        """How many pages fit, the rounding to huge pages included. Raises ConfigError where none does."""
        slots = capacity_bytes // _HUGE_PAGE * _HUGE_PAGE // page_bytes
        if slots < 1:
            raise ConfigError(
                f"a host tier of {capacity_bytes} bytes holds no page of {page_bytes} bytes; ask for at least "
                f"{_rounded(page_bytes)}"
            )
        return slots

    # -- bookkeeping --------------------------------------------------------------------------------------------

    @property
    def book(self) -> SlotBook:
        return self._book

    def contains(self, key: ContentKey) -> bool | None:
        return self._book.contains(key)

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        return [self._book.contains(key) for key in keys]

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        pass

    def declines(self, page: Page) -> bool:
        return self._book.declines(page)

    def prepare_store(self, page: Page) -> Slot | None:
        if self._book.is_known(page.key):
            return None
        if self._book.declines(page):
            self._declined += 1
            return None
        index = self._book.prepare_store(page)
        if index is None:
            self._refused += 1
            return None
        self._touched = max(self._touched, index + 1)
        return Slot(page.key, index, self._arena.blocks[index])

    def complete_store(self, slot: Slot, error: TierError | None) -> None:
        self._book.complete_store(slot.index, succeeded=error is None)
        self._stored.seconds += slot.seconds
        if error is not None:
            self._stored.failed += 1
            return
        assert slot.checksum is not None
        self._checksums[slot.index] = slot.checksum
        self._stored.pages += 1
        self._stored.bytes += self.page_bytes

    def prepare_load(self, key: ContentKey) -> Slot | None:
        index = self._book.prepare_load(key)
        if index is None:
            return None
        return Slot(key, index, self._arena.blocks[index], self._checksums[index])

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        self._loaded.seconds += slot.seconds
        if error is None:
            self._loaded.pages += 1
            self._loaded.bytes += self.page_bytes
        else:
            self._loaded.failed += 1
            self._quarantined += isinstance(error, WrongContent)
            self._book.forget([slot.key], why_unreadable(error))
        self._book.complete_load(slot.index)

    def why_not_in_place(self) -> str:
        return ""

    def hold(self, key: ContentKey) -> Slot | None:
        index = self._book.hold(key)
        if index is None:
            return None
        return self._held.setdefault(index, Slot(key, index, self._arena.blocks[index], self._checksums[index]))

    def let_go(self, slot: Slot, error: TierError | None = None) -> None:
        if error is not None and self._book.slot(slot.key) == slot.index:
            self._loaded.failed += 1
            self._quarantined += isinstance(error, WrongContent)
            self._book.forget([slot.key], why_unreadable(error))
        self._book.let_go(slot.index)
        if not self._book.is_held(slot.index):
            del self._held[slot.index]

    def held(self, indices: np.ndarray) -> list[Slot]:
        return [self._held[index] for index in indices.tolist()]

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        return self._arena.address + indices.astype(np.int64) * self.page_bytes

    def touch(self, keys: Sequence[ContentKey]) -> None:
        self._book.touch(keys)

    def history(self, key: ContentKey) -> History | None:
        return self._book.history(key)

    def remember(self, pages: Sequence[Page]) -> None:
        self._book.remember(pages)

    def victims(self, count: int) -> list[Page]:
        return [self._book.page(slot) for slot in self._book.victims(count)]

    def pages(self) -> list[Page]:
        return self._book.pages()

    def forget(self, keys: Sequence[ContentKey]) -> None:
        self._book.forget(keys)

    def clear(self) -> int:
        return len(self._book.clear())

    def tick(self) -> None:
        pass

    def watch(self, watcher: TierWatcher | None) -> None:
        self._book.watch(watcher)

    def blame(self, reason: str) -> None:
        pass  # memory answers

    # -- bytes, in worker threads -------------------------------------------------------------------------------

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        memory = [slot.memory for slot in slots if slot.memory is not None]
        assert len(memory) == len(slots)
        found: list[int | TierError] = []
        for slot, checksum in zip(slots, copy_checksums(into, memory), strict=True):
            wrong = checksum != slot.checksum
            found.append(WrongContent(f"host slot {slot.index} is not what was stored in it") if wrong else checksum)
        return found

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> list[TierError | None]:
        for index, row in zip(indices.tolist(), into, strict=True):
            row[:] = self._arena.blocks[index, start : start + into.shape[1]]
        return [None] * len(indices)

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        raise InvariantError("host slots have memory: whoever reads a page reads it into that")

    # -- what it shows ------------------------------------------------------------------------------------------

    def usage(self) -> TierUsage:
        book = self._book
        return TierUsage(
            kind=self.kind,
            capacity_bytes=_rounded(book.num_slots * self.page_bytes),
            used_bytes=_rounded(self._touched * self.page_bytes),
            blocks=book.num_slots,
            free=book.num_free,
            used=book.num_held,
            cached=book.num_slots - book.num_free - book.num_held - book.num_moving,
            moving=book.num_moving,
        )

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            name=self.name,
            state="ok",
            usage=self.usage(),
            pages=self._book.num_pages,
            stored=replace(self._stored),
            loaded=replace(self._loaded),
            evicted=self._book.evicted,
            refused=self._refused,
            declined=self._declined,
            quarantined=self._quarantined,
        )

    def check(self) -> None:
        self._book.check()

    def close(self) -> None:
        if self._pinning is not None:
            self._pinning.unpin(self._arena.address)
            self._pinning = None


def _rounded(size: int) -> int:
    return -(-size // _HUGE_PAGE) * _HUGE_PAGE
