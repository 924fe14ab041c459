"""Lower tiers over a dictionary, which fail in every way that the protocol allows (src/kvpager/tiers/tier.py).

What is stored lies in a ``Media``, which outlives the tier as files outlive a process. A SimulatedDisk knows what is
there; a SimulatedRemote has to ask. Both compare checksums, as every tier has to; both tell when they are called from
the wrong thread.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from kvpager.checksum import checksum
from kvpager.errors import InvariantError, TierError, TierFull, WrongContent
from kvpager.eviction.policy import History
from kvpager.tiers.tier import Page, Slot, TierStatistics, TierUsage, TransferCounts
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import ContentKey, PageReason, TierKind


@dataclass(eq=False)
class Stored:
    page: Page
    bytes: np.ndarray
    checksum: int = 0
    is_rotten: bool = False


@dataclass
class Media:
    """``capacity``: pages."""

    capacity: int
    stored: dict[ContentKey, Stored] = field(default_factory=dict)


@dataclass
class Weather:
    """Chances of a failure per page (``raises``: per batch), and what a tier is like for a while."""

    store_error: float = 0.0
    load_error: float = 0.0
    probe_error: float = 0.0
    raises: float = 0.0
    rot: float = 0.0  # a page that is stored turns out wrong later
    lost: float = 0.0  # a page is gone when it is looked for
    is_full: bool = False
    is_read_only: bool = False


class WorkerDied(BaseException):
    """What no ``except Exception`` catches."""


class SimulatedDisk:
    """Knows its pages; drops the oldest that nobody reads."""

    kind = TierKind.DISK
    name = "disk"
    is_persistent = True
    is_exclusive = False
    load_threads = store_threads = 2
    part_alignment = 1

    def __init__(self, media: Media, page_bytes: int, generator: random.Random, is_working: Callable[[], bool]) -> None:
        self.media = media
        self.page_bytes = page_bytes
        self.weather = Weather()
        self._random = generator
        self._is_working = is_working
        self.found: dict[ContentKey, Stored] = dict(media.stored)
        self._writing: dict[ContentKey, Stored] = {}
        self._readers: Counter[Stored] = Counter()
        self._doomed: set[Stored] = set()
        self._holds: Counter[Stored] = Counter()
        self._held: dict[int, Slot] = {}
        self._index = count(1)
        self._stored, self._loaded = TransferCounts(), TransferCounts()
        self._evicted = self._refused = self._declined = self._quarantined = 0
        self.watcher: TierWatcher | None = None
        self.ticks = 0
        self.is_closed = False
        self.happened: Counter[str] = Counter()

    # -- bookkeeping --------------------------------------------------------------------------------------------

    def contains(self, key: ContentKey) -> bool | None:
        self._in_bookkeeping()
        return key in self.found

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        raise AssertionError("a disk that is asked what it has")

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        raise AssertionError("a disk that is told what it has")

    def declines(self, page: Page) -> bool:
        """Pages of a low kind are worth less than the rest of a full disk."""
        self._in_bookkeeping()
        return page.history is not None and self._num_taken >= self.media.capacity and page.history.kind % 4 == 0

    def prepare_store(self, page: Page) -> Slot | None:
        self._in_bookkeeping()
        if page.key in self.found or page.key in self._writing:
            return None
        if self.declines(page):
            self._declined += 1
            return None
        if self.weather.is_full or self.weather.is_read_only or not self._make_room():
            self._refused += 1
            return None
        stored = self._writing[page.key] = Stored(page, np.zeros(self.page_bytes, np.uint8))
        return Slot(page.key, 0, place=stored)

    def _make_room(self) -> bool:
        if self._num_taken < self.media.capacity:
            return True
        for key, stored in self.found.items():
            if not self._is_busy(stored):
                self._evicted += 1
                self._drop(key)
                return True
        return False

    @property
    def _num_taken(self) -> int:
        return len(self.found) + len(self._writing) + len(self._doomed)

    def complete_store(self, slot: Slot, error: TierError | None) -> None:
        self._in_bookkeeping()
        stored = self._writing.pop(slot.key)
        assert stored is slot.place
        if error is not None:
            self._stored.failed += 1
            self.happened["failed store"] += 1
            return
        self._stored.pages += 1
        self._stored.bytes += self.page_bytes
        self.happened["stored"] += 1
        self._keep(stored)
        if self._random.random() < self.weather.rot:
            self._rot(stored)

    def _keep(self, stored: Stored) -> None:
        self.media.stored[stored.page.key] = self.found[stored.page.key] = stored
        self._tell(stored.page, PageReason.COPIED)

    def _tell(self, page: Page, why: PageReason) -> None:
        if self.watcher is not None:
            self.watcher.stored(page.key, why, 0, page.parent, page.group)

    def watch(self, watcher: TierWatcher | None) -> None:
        self.watcher = watcher
        for stored in self.found.values():
            self._tell(stored.page, PageReason.FOUND)

    def _rot(self, stored: Stored) -> None:
        self.happened["rotten"] += 1
        stored.is_rotten = True
        at = self._random.randrange(self.page_bytes)
        stored.bytes = stored.bytes.copy()
        stored.bytes[at] ^= 1 << self._random.randrange(8)

    def prepare_load(self, key: ContentKey) -> Slot | None:
        self._in_bookkeeping()
        stored = self.found.get(key)
        if stored is None:
            return None
        self._readers[stored] += 1
        return Slot(key, 0, place=stored, checksum=stored.checksum)

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        self._in_bookkeeping()
        stored = slot.place
        assert isinstance(stored, Stored)
        self._readers[stored] -= 1
        self._settle(stored)
        if error is None:
            self._loaded.pages += 1
            self._loaded.bytes += self.page_bytes
            self.happened["loaded"] += 1
            return
        self._loaded.failed += 1
        self._quarantined += isinstance(error, WrongContent)
        self.happened["quarantined" if isinstance(error, WrongContent) else "failed load"] += 1
        if self.found.get(slot.key) is stored:
            self._drop(slot.key)

    def _drop(self, key: ContentKey) -> None:
        stored = self.found.pop(key)
        if self.watcher is not None:
            self.watcher.removed(key, PageReason.FORGOTTEN, 0)
        self.media.stored.pop(key, None)
        if self._is_busy(stored):
            self._doomed.add(stored)

    def _is_busy(self, stored: Stored) -> bool:
        return stored in self._readers or stored in self._holds

    def _settle(self, stored: Stored) -> None:
        self._readers, self._holds = +self._readers, +self._holds
        if not self._is_busy(stored):
            self._doomed.discard(stored)

    # -- holds --------------------------------------------------------------------------------------------------

    def why_not_in_place(self) -> str:
        return ""

    def hold(self, key: ContentKey) -> Slot | None:
        self._in_bookkeeping()
        stored = self.found.get(key)
        if stored is None:
            return None
        slot = next((slot for slot in self._held.values() if slot.place is stored), None)
        slot = slot or Slot(key, next(self._index), place=stored, checksum=stored.checksum)
        self._held[slot.index] = slot
        self._holds[stored] += 1
        return slot

    def let_go(self, slot: Slot, error: TierError | None = None) -> None:
        self._in_bookkeeping()
        stored = self._held[slot.index].place
        assert isinstance(stored, Stored)
        if error is not None and self.found.get(slot.key) is stored:
            self._loaded.failed += 1
            self._quarantined += isinstance(error, WrongContent)
            self._drop(slot.key)
        self._holds[stored] -= 1
        self._settle(stored)
        if stored not in self._holds:
            del self._held[slot.index]

    def held(self, indices: np.ndarray) -> list[Slot]:
        return [self._held[index] for index in indices.tolist()]

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        return None

    # -- the rest of the books ----------------------------------------------------------------------------------

    def touch(self, keys: Sequence[ContentKey]) -> None:
        self._in_bookkeeping()
        for key in keys:
            if key in self.found:
                self.found[key] = self.found.pop(key)

    def history(self, key: ContentKey) -> History | None:
        self._in_bookkeeping()
        return self.found[key].page.history if key in self.found else None

    def remember(self, pages: Sequence[Page]) -> None:
        self._in_bookkeeping()
        for page in pages:
            if page.key in self.found:
                self.found[page.key].page = page

    def victims(self, count: int) -> list[Page]:
        self._in_bookkeeping()
        return [stored.page for stored in self.found.values() if not self._is_busy(stored)][:count]

    def pages(self) -> list[Page]:
        return [stored.page for stored in self.found.values()]

    def forget(self, keys: Sequence[ContentKey]) -> None:
        for key in keys:
            if key in self.found:
                self._drop(key)

    def clear(self) -> int:
        keys = [key for key, stored in self.found.items() if stored not in self._readers]
        self.forget(keys)
        return len(keys)

    def tick(self) -> None:
        self._in_bookkeeping()
        self.ticks += 1

    def blame(self, reason: str) -> None:
        self.happened["blamed"] += 1

    # -- bytes --------------------------------------------------------------------------------------------------

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        self._in_worker()
        return [self._write(slot, page) for slot, page in zip(slots, pages, strict=True)]

    def _write(self, slot: Slot, page: np.ndarray) -> TierError | None:
        stored = slot.place
        assert isinstance(stored, Stored)
        if self._random.random() < self.weather.store_error:
            stored.bytes[: self.page_bytes // 2] = page[: self.page_bytes // 2]
            return TierError("EIO") if self._random.random() < 0.5 else TierFull("ENOSPC")
        stored.bytes[:] = page
        stored.checksum = checksum(stored.bytes)
        if slot.checksum is not None and slot.checksum != stored.checksum:
            return WrongContent("what came is not what was sent")
        return None

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        self._in_worker()
        return [self._read(slot, target) for slot, target in zip(slots, into, strict=True)]

    def _read(self, slot: Slot, into: np.ndarray) -> int | TierError:
        stored = slot.place
        assert isinstance(stored, Stored)
        into[:] = 0xEE  # what a failed read leaves is undefined
        if self._random.random() < self.weather.lost:
            return TierError("gone")
        if self._random.random() < self.weather.load_error:
            return TierError("EIO")
        into[:] = stored.bytes
        found = checksum(into)
        return found if found == stored.checksum else WrongContent("rotten")

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> list[TierError | None]:
        self._in_worker()
        return [self._read_part(slot, start, row) for slot, row in zip(self.held(indices), into, strict=True)]

    def _read_part(self, slot: Slot, start: int, into: np.ndarray) -> TierError | None:
        stored = slot.place
        assert isinstance(stored, Stored)
        into[:] = 0xEE
        if self._random.random() < self.weather.lost:
            return TierError("gone")
        if self._random.random() < self.weather.load_error:
            return TierError("EIO")
        into[:] = stored.bytes[start : start + len(into)]
        return None

    def _in_worker(self) -> None:
        assert self._is_working(), "bytes are moved by worker threads only"
        if self._random.random() < self.weather.raises:
            raise WorkerDied if self._random.random() < 0.5 else RuntimeError("a bug of the tier")

    def _in_bookkeeping(self) -> None:
        assert not self._is_working(), "books are kept by one thread only"
        assert not self.is_closed, "a tier is used after it was closed"

    # -- what it shows ------------------------------------------------------------------------------------------

    def usage(self) -> TierUsage:
        moving = len(self._writing) + len(self._readers)
        used = sum(stored not in self._readers for stored in self._holds)
        cached = sum(not self._is_busy(stored) for stored in self.found.values())
        return TierUsage(
            kind=self.kind,
            capacity_bytes=self.media.capacity * self.page_bytes,
            used_bytes=self._num_taken * self.page_bytes,
            blocks=self.media.capacity,
            free=self.media.capacity - self._num_taken,
            used=used,
            cached=cached,
            moving=moving,
        )

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            name=self.name,
            state="ok",
            usage=self.usage(),
            pages=len(self.found),
            stored=self._stored,
            loaded=self._loaded,
            evicted=self._evicted,
            refused=self._refused,
            declined=self._declined,
            quarantined=self._quarantined,
        )

    def check(self) -> None:
        if self._num_taken > self.media.capacity:
            raise InvariantError("I20: more pages than fit")
        busy = self._readers | self._holds
        if any(count < 1 for count in busy.values()) or not self._doomed <= set(busy):
            raise InvariantError("readers are counted wrong")

    def close(self) -> None:
        self.is_closed = True


class SimulatedRemote(SimulatedDisk):
    """A store of others: it has to be asked, drops pages without a word, and has no bound that concerns us."""

    kind = TierKind.REMOTE
    name = "remote"

    def __init__(self, media: Media, page_bytes: int, generator: random.Random, is_working: Callable[[], bool]) -> None:
        super().__init__(media, page_bytes, generator, is_working)
        self.found.clear()
        self._absent: set[ContentKey] = set()

    def contains(self, key: ContentKey) -> bool | None:
        self._in_bookkeeping()
        return True if key in self.found else False if key in self._absent or key in self._writing else None

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        self._in_worker()
        self.happened["asked"] += 1
        if self._random.random() < self.weather.probe_error:
            raise TierError("no answer")
        return [key in self.media.stored for key in keys]

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        self._in_bookkeeping()
        for key, is_there in zip(keys, found or [False] * len(keys), strict=True):
            stored = self.media.stored.get(key)
            if not is_there or key in self._writing:
                self._absent.add(key)
            elif key not in self.found:
                self._absent.discard(key)
                page = Page(key, key) if stored is None else stored.page
                self.found[key] = stored or Stored(page, np.zeros(self.page_bytes, np.uint8), checksum=1)
                self._tell(page, PageReason.LEARNED)

    def declines(self, page: Page) -> bool:
        return False

    def _make_room(self) -> bool:
        return True

    def _keep(self, stored: Stored) -> None:
        super()._keep(stored)
        self._absent.discard(stored.page.key)

    def _drop(self, key: ContentKey) -> None:
        super()._drop(key)
        self._absent.add(key)

    def _read(self, slot: Slot, into: np.ndarray) -> int | TierError:
        return super()._read(slot, into) if slot.key in self.media.stored else TierError("no such object")

    def tick(self) -> None:
        super().tick()
        if self._random.random() < 0.1:
            self._absent.clear()

    def forget_one(self) -> None:
        """Somebody else has dropped a page; our verdict is stale."""
        if self.media.stored:
            del self.media.stored[self._random.choice(list(self.media.stored))]
            self.happened["stale verdict"] += 1

    def usage(self) -> TierUsage:
        moving = len(self._writing) + len(self._readers)
        used = sum(stored not in self._readers for stored in self._holds)
        cached = sum(not self._is_busy(stored) for stored in self.found.values())
        size = self._num_taken * self.page_bytes
        return TierUsage(self.kind, size, size, self._num_taken, 0, used, cached, moving)

    def check(self) -> None:
        if any(count < 1 for count in self._readers.values()):
            raise InvariantError("readers are counted wrong")
