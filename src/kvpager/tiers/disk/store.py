"""The disk tier: pages in slab files of one folder, found again after a restart. Its books; bytes are worker.py's.

    bookkeeping thread    SlotBook (which page is in which slot), Extents (which slot is in which slab), health
    worker threads        Worker: Folder (files and the bytes they take), Slab, Transfers

Opening, ``refresh``, ``sync``, ``check`` and ``close`` read or write files; nothing else here does.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import ConfigError, InvariantError, TierError, WrongContent
from kvpager.eviction.policy import EvictionPolicy, History
from kvpager.tiers.disk.breakers import Breakers
from kvpager.tiers.disk.contents import Contents, read_contents
from kvpager.tiers.disk.extents import Extents, Place
from kvpager.tiers.disk.faults import word
from kvpager.tiers.disk.files import Files, SystemFiles
from kvpager.tiers.disk.folder import Folder
from kvpager.tiers.disk.format import BLOCK, Shape
from kvpager.tiers.disk.found_pages import found_pages
from kvpager.tiers.disk.growth import Growth
from kvpager.tiers.disk.payload import PayloadCodec
from kvpager.tiers.disk.slab import Slab
from kvpager.tiers.disk.transfer import Transfers
from kvpager.tiers.disk.worker import Worker, place_of
from kvpager.tiers.slot_book import SlotBook
from kvpager.tiers.tier import Page, Slot, TierStatistics, TierUsage, TransferCounts
from kvpager.tiers.watcher import TierWatcher, why_unreadable
from kvpager.types import Clock, ContentKey, TierKind

if TYPE_CHECKING:
    from kvpager.tiers.sealing import Packing, Seal


class DiskStore:
    """``identity``: SHA-256 of all that pages must agree in besides their key. ``capacity_bytes``: of all slab files of
    the folder together, at any moment.

    ``direct``: past the page cache; "auto" where the file system can. ``read_only``: uses what another process writes,
    takes no lock, and shows what was there when it was opened or last refreshed. ``allow_shared``: also a folder
    that is open to others, or a link. ``exclusive``: holds no page that came up from it. Raises ConfigError where the
    folder can't or must not be used.
    """

    kind = TierKind.DISK
    name = "disk"
    is_persistent = True
    load_threads = 4  # one waits for the disk while another computes a checksum, and disks like a queue
    store_threads = 2
    part_alignment = BLOCK

    def __init__(
        self,
        folder: str,
        page_bytes: int,
        capacity_bytes: int,
        make_policy: Callable[[int], EvictionPolicy],
        *,
        identity: bytes,
        clock: Clock,
        files: Files | None = None,
        direct: bool | str = "auto",
        read_only: bool = False,
        allow_shared: bool = False,
        exclusive: bool = False,
        seal: "Seal | None" = None,
        packing: "Packing | None" = None,
    ) -> None:
        self.page_bytes = page_bytes
        self.is_exclusive = exclusive
        self._clock = clock
        self._direct = direct
        self._make_policy = make_policy
        self._identity = identity
        codec = PayloadCodec(page_bytes, seal, packing)
        self._encoding = codec.encoding
        self._is_plain = codec.is_plain
        self._transfers = Transfers(page_bytes, codec, identity)
        least = Shape(1, self._transfers.slot_bytes).file_bytes
        if capacity_bytes < least and not read_only:
            raise ConfigError(
                f"a disk tier of {capacity_bytes} bytes holds no page of {page_bytes} bytes; ask for at least {least}"
            )
        self._folder = Folder(
            files or SystemFiles(), folder, capacity_bytes, read_only=read_only, allow_shared=allow_shared
        )
        self._breakers = Breakers(clock)
        self._stored, self._loaded = TransferCounts(), TransferCounts()
        self._failures: Counter[str] = Counter()
        self._refused = self._declined = self._quarantined = 0
        self._lost: list[Slab] = []  # open until nothing moves
        self._doomed: set[int] = set()  # slots to be emptied as soon as nobody reads or holds them
        self._held: dict[int, Slot] = {}
        self._has_answered = False  # parts were read since the last tick
        self._watcher: TierWatcher | None = None
        self._open()

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._folder.enter()
        try:
            self._adopt(read_contents(self._folder, self._transfers.slot_bytes, self._encoding, self._direct))
        except BaseException:
            self._folder.leave()
            raise

    def refresh(self) -> None:
        """A reader looks again at what is there. REQUIRES: ``read_only``, nothing is moved or held."""
        assert self._folder.read_only
        self._worker.close_slabs()
        self._folder.leave()
        self._folder.forget_files()
        if self._watcher is not None:
            self._watcher.cleared()
        self._open()

    def _adopt(self, contents: Contents) -> None:
        """Makes the books of what was found."""
        slabs, self._extents = [found.slab for found in contents.slabs], Extents()
        self._worker = Worker(self._folder, self._transfers, self._encoding, self._direct, slabs, self._clock)
        firsts = [self._extents.add(slab.shape.slots, slab).first for slab in slabs]
        if not self._folder.read_only:
            room = self._folder.capacity - self._folder.held + self._folder.spare_bytes
            self._extents.plan(room, self._folder.capacity, self._transfers.slot_bytes)
        self._book = SlotBook(0, self._make_policy(0))
        self._book.grow(self._extents.num_slots)
        self._growth = Growth(self._extents, self._book, self._breakers.growth)
        self.watch(self._watcher)
        pages = found_pages(contents.slabs, firsts, self._identity)
        self._make_stale(pages.older)
        self._book.adopt_all(pages.slots, pages.pages)
        self._transfers.start_after(pages.newest)
        self._quarantined += contents.quarantined
        self._failures.update(contents.failures)
        for found in contents.slabs:
            if len(found.damaged):
                self._quarantined += len(found.damaged)
                self._failures["header"] += len(found.damaged)
                self._worker.stale.update((found.slab, slot) for slot in found.damaged.tolist())

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def book(self) -> SlotBook:
        return self._book

    def contains(self, key: ContentKey) -> bool | None:
        """While the disk fails, nothing: whoever asks looks further down, or computes."""
        return self._book.contains(key) and not self._breakers.disk.is_open

    def probe(self, keys: Sequence[ContentKey]) -> list[bool]:
        return [bool(self.contains(key)) for key in keys]

    def learn(self, keys: Sequence[ContentKey], found: Sequence[bool] | None) -> None:
        pass

    def victims(self, count: int) -> list[Page]:
        return [self._book.page(slot) for slot in self._book.victims(count)]

    def pages(self) -> list[Page]:
        return self._book.pages()

    # -- stores -------------------------------------------------------------------------------------------------

    def declines(self, page: Page) -> bool:
        return self._book.declines(page)

    def prepare_store(self, page: Page) -> Slot | None:
        if self._book.is_known(page.key):
            return None
        if self._book.declines(page):
            self._declined += 1
            return None
        takes_writes = not self._folder.read_only and self._breakers.allows_write()
        index = self._book.prepare_store(page) if takes_writes else None
        if index is None:
            self._refused += 1
            return None
        extent = self._extents.of(index)
        if extent.slab is not None:
            self._worker.stale.discard((extent.slab, index - extent.first))
        return Slot(page.key, index, place=Place(extent, page.parent))

    def complete_store(self, slot: Slot, error: TierError | None) -> None:
        place = place_of(slot)
        self._stored.seconds += slot.seconds
        if error is None and (place.used is None or place.used.lost or place.used is not place.extent.slab):
            error = TierError("removed: the file of a page went while it was written")
        self._book.complete_store(slot.index, succeeded=error is None)
        if error is None:
            self._stored.pages += 1
            self._stored.bytes += self.page_bytes
            self._breakers.stored()
            return
        self._stored.failed += 1
        if place.was_tried:
            self._failures[word(error)] += 1
            if self._breakers.blame_for_store(place, error):
                self._growth.stop(str(error))

    # -- loads --------------------------------------------------------------------------------------------------

    def prepare_load(self, key: ContentKey) -> Slot | None:
        if not self.contains(key) or not self._breakers.disk.allows():
            return None
        index = self._book.prepare_load(key)
        return None if index is None else Slot(key, index, place=Place(self._extents.of(index)))

    def complete_load(self, slot: Slot, error: TierError | None) -> None:
        self._loaded.seconds += slot.seconds
        if error is None:
            self._loaded.pages += 1
            self._loaded.bytes += self.page_bytes
            self._breakers.disk.succeeded()
        else:
            self._note_failed_load(slot.key, error, was_tried=place_of(slot).was_tried)
        self._book.complete_load(slot.index)
        self._empty_if_idle(slot.index)

    def _note_failed_load(self, key: ContentKey, error: TierError, *, was_tried: bool = True) -> None:
        self._loaded.failed += 1
        self._failures[word(error)] += 1
        dropped = self._book.forget([key], why_unreadable(error))
        if isinstance(error, WrongContent):
            self._quarantined += 1
            self._make_stale(dropped)
        elif was_tried:
            self._breakers.disk.failed(str(error))

    def _empty_if_idle(self, index: int) -> None:
        if index in self._doomed and not self._book.is_busy(index):
            self._doomed.remove(index)
            self._make_stale([index])

    # -- holds --------------------------------------------------------------------------------------------------

    def why_not_in_place(self) -> str:
        if self._is_plain:
            return ""
        return (
            f"the disk tier keeps its pages {self._encoding}, which can be read as a whole only: open it without "
            f"compress and key_file"
        )

    def hold(self, key: ContentKey) -> Slot | None:
        index = self._book.hold(key) if self.contains(key) else None
        if index is None:
            return None
        return self._held.setdefault(index, Slot(key, index, place=Place(self._extents.of(index))))

    def let_go(self, slot: Slot, error: TierError | None = None) -> None:
        if error is not None and self._book.slot(slot.key) == slot.index:
            self._note_failed_load(slot.key, error)
        self._book.let_go(slot.index)
        if not self._book.is_held(slot.index):
            del self._held[slot.index]
        self._empty_if_idle(slot.index)

    def held(self, indices: np.ndarray) -> list[Slot]:
        return [self._held[index] for index in indices.tolist()]

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        return None

    # -- the rest of the books ----------------------------------------------------------------------------------

    def touch(self, keys: Sequence[ContentKey]) -> None:
        self._book.touch(keys)

    def history(self, key: ContentKey) -> History | None:
        return self._book.history(key)

    def remember(self, pages: Sequence[Page]) -> None:
        self._book.remember(pages)

    def forget(self, keys: Sequence[ContentKey]) -> None:
        self._make_stale(self._book.forget(keys))

    def clear(self) -> int:
        dropped = self._book.clear()
        self._make_stale(dropped)
        return len(dropped)

    def _make_stale(self, slots: Sequence[int]) -> None:
        """A worker will empty the headers of these slots, so that a restart does not find the pages again."""
        if self._folder.read_only:
            return
        for slot in slots:
            extent = self._extents.of(slot)
            if self._book.is_busy(slot):
                self._doomed.add(slot)
            elif extent.slab is not None:
                self._worker.stale.add((extent.slab, slot - extent.first))

    def tick(self) -> None:
        """Takes over what workers found out: that parts came; slabs made, made shorter than planned, or lost."""
        if self._has_answered:
            self._has_answered = False
            self._breakers.disk.succeeded()
        for slab in self._growth.tick():
            self._failures[f"slab {slab.lost}"] += 1
            self._lost.append(slab)
        if self._lost and not self._book.num_moving and not self._held:
            for slab in self._lost:
                slab.close()
            self._lost = []

    def watch(self, watcher: TierWatcher | None) -> None:
        self._watcher = watcher
        self._book.watch(watcher)

    def blame(self, reason: str) -> None:
        self._breakers.disk.failed(reason)

    # -- bytes, in worker threads -------------------------------------------------------------------------------

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        return self._worker.write(slots, pages)

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        return self._worker.read(slots, into)

    def read_parts(self, indices: np.ndarray, start: int, into: np.ndarray) -> list[TierError | None]:
        if reason := self.why_not_in_place():
            return [TierError(f"packed: {reason}")] * len(indices)
        errors = self._worker.read_parts(self.held(indices), start, into, BLOCK if self._direct else 1)
        self._has_answered |= None in errors
        return errors

    # -- what it shows ------------------------------------------------------------------------------------------

    def usage(self) -> TierUsage:
        book = self._book
        return TierUsage(
            kind=self.kind,
            capacity_bytes=self._folder.capacity,
            used_bytes=self._folder.held,
            blocks=book.num_in_service,
            free=book.num_free,
            used=book.num_held,
            cached=book.num_in_service - book.num_free - book.num_held - book.num_moving,
            moving=book.num_moving,
        )

    @property
    def state(self) -> str:
        return self._breakers.state

    def statistics(self) -> TierStatistics:
        return TierStatistics(
            name=self.name,
            state=self.state,
            usage=self.usage(),
            pages=self._book.num_pages,
            stored=replace(self._stored),
            loaded=replace(self._loaded),
            evicted=self._book.evicted,
            refused=self._refused,
            declined=self._declined,
            quarantined=self._quarantined,
            failures=dict(self._failures),
        )

    def check(self) -> None:
        self._book.check()
        self._extents.check()
        if self._folder.read_only or not self._folder.is_in_place():
            return
        with self._folder.lock:
            if self._worker.sizes() != self._folder.held:
                raise InvariantError("I19: the disk tier counts other bytes than its folder holds")
            if self._folder.held > self._folder.capacity:
                raise InvariantError("I20: the disk tier's folder holds more than its capacity")

    # -- the end ------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """What is stored now survives a loss of power as well. Raises OSError."""
        self._worker.empty_stale()
        self._worker.sync()

    def close(self) -> None:
        for slot in list(self._held.values()):
            while slot.index in self._held:
                self.let_go(slot)
        try:
            if not self._folder.read_only:
                self.sync()
        except OSError:
            pass  # what is lost was never promised; checksums find it
        self._worker.close_slabs()
        for slab in self._lost:
            slab.close()
        self._folder.leave()
