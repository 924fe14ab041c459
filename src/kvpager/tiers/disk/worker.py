"""The part of the disk tier that worker threads run: makes slabs, moves batches, empties headers, sees what is gone.

Changes no book. What the books need to know it leaves in ``Place``, ``Extent.slab`` and ``Slab.lost``. Locks are among
workers only: one makes a slab while the others wait; nobody waits for a batch.
"""

from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

import numpy as np

from kvpager.errors import ConfigError, TierError, TierFull, WrongContent
from kvpager.tiers.disk.extents import Extent, Place
from kvpager.tiers.disk.faults import NO_ROOM, fault
from kvpager.tiers.disk.folder import Folder
from kvpager.tiers.disk.format import Shape
from kvpager.tiers.disk.parts import read_parts
from kvpager.tiers.disk.slab import Slab, create_slab
from kvpager.tiers.disk.transfer import Item, Transfers
from kvpager.tiers.tier import Slot
from kvpager.types import Clock

_LOOK_EVERY = 1.0  # seconds between looks at whether folder and slabs are still there

StaleSlot = tuple[Slab, int]  # and its number in that slab


class Worker:
    """``stale``: free slots whose headers have yet to be emptied; the books add to it."""

    def __init__(
        self,
        folder: Folder,
        transfers: Transfers,
        encoding: str,
        direct: bool | str,
        slabs: Sequence[Slab],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._transfers = transfers
        self._encoding = encoding
        self._direct = direct
        self._slabs = list(slabs)
        self._clock = clock
        self._next_look = clock() + _LOOK_EVERY
        self._emptying = Lock()
        self.stale: set[StaleSlot] = set()

    # -- batches ------------------------------------------------------------------------------------------------

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        self.look()
        self.empty_stale()
        items = []
        for slot, page in zip(slots, pages, strict=True):
            place = place_of(slot)
            item = Item(slot.index - place.extent.first, slot.key, page, place.parent, slot.checksum)
            items.append(item)
            place.was_tried = True
            try:
                place.used = self._slab_for(place.extent, item.slot)
            except TierError as error:
                item.result = error
        for slab, batch in _by_slab(slots, items):
            self._transfers.store(slab, batch)
        return [item.result if isinstance(item.result, TierError) else None for item in items]

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        self.look()
        self.empty_stale()
        items = []
        for slot, target in zip(slots, into, strict=True):
            place = place_of(slot)
            place.used, place.was_tried = place.extent.slab, True
            item = Item(slot.index - place.extent.first, slot.key, target)
            if place.used is None or place.used.lost:
                item.result = WrongContent("removed: the file of a page is gone")
            items.append(item)
        for slab, batch in _by_slab(slots, items):
            self._transfers.load(slab, batch)
        results = [item.result for item in items]
        if any(isinstance(result, WrongContent) for result in results):
            self.look(now=True)
        return [TierError("unread: a page was left out") if result is None else result for result in results]

    def read_parts(self, slots: Sequence[Slot], start: int, into: np.ndarray, alignment: int) -> list[TierError | None]:
        self.look()
        places = []
        for slot in slots:
            extent = place_of(slot).extent
            is_lost = extent.slab is None or extent.slab.lost
            places.append((None if is_lost else extent.slab, slot.index - extent.first))
        errors = read_parts(self._folder.files, places, start, into, alignment)
        if any(isinstance(error, WrongContent) for error in errors):
            self.look(now=True)
        return errors

    # -- slabs --------------------------------------------------------------------------------------------------

    def _slab_for(self, extent: Extent, slot: int) -> Slab:
        if extent.slab is None:
            with self._folder.lock:
                if extent.slab is None:
                    extent.slab = self._make(extent.count)
        slab = extent.slab
        assert slab is not None
        if slot >= slab.shape.slots:
            raise TierFull("ENOSPC: a slab became shorter than it was planned")
        return slab

    def _make(self, count: int) -> Slab:
        """A slab of ``count`` slots, or of as many as there is room for. Raises TierError."""
        try:
            if not self._folder.is_in_place():
                self._lose_all()
                self._folder.enter_again()
            while True:
                try:
                    slab = self._create(count)
                    break
                except OSError as error:
                    if error.errno not in NO_ROOM or (count == 1 and not self._folder.spare_bytes):
                        raise
                    if not self._folder.remove_spare():
                        count //= 2
        except ConfigError as error:
            raise TierFull(f"folder: {error}") from error
        except OSError as error:
            raise fault(error, "a slab can't be made") from error
        self._slabs.append(slab)
        return slab

    def _create(self, count: int) -> Slab:
        return create_slab(self._folder, Shape(count, self._transfers.slot_bytes), self._encoding, self._direct)

    # -- what is gone -------------------------------------------------------------------------------------------

    def look(self, *, now: bool = False) -> None:
        """Once a second, or now: whether the folder and its slabs are still there, as long as they were."""
        if self._folder.read_only or not (now or self._clock() >= self._next_look):
            return
        with self._folder.lock:
            self._next_look = self._clock() + _LOOK_EVERY
            if not self._folder.is_in_place():
                self._lose_all()
                return
            for slab in list(self._slabs):
                with suppress(OSError):
                    self._look_at(slab)

    def _look_at(self, slab: Slab) -> None:
        wrong = slab.fault()
        if wrong is None:
            return
        slab.lost = wrong
        self._slabs.remove(slab)
        size = 0 if wrong == "removed" else slab.size()
        self._folder.count(size - slab.shape.file_bytes)
        if size:
            self._folder.set_aside(slab.name, size)

    def _lose_all(self) -> None:
        for slab in self._slabs:
            slab.lost = "folder removed"
        self._slabs = []
        self._folder.forget_files()

    # -- slots that were given up -------------------------------------------------------------------------------

    def empty_stale(self) -> None:
        """Empties the headers of pages that must not be found again.

        The lock is taken even if there are none: another worker may be about to empty a slot that was given out again
        meanwhile, which this one is about to write.
        """
        with self._emptying:
            taken: dict[Slab, list[int]] = {}
            while self.stale:
                slab, slot = self.stale.pop()
                taken.setdefault(slab, []).append(slot)
            for slab, slots in taken.items():
                if slab.lost:
                    continue
                for first, count in _neighbours(slots):
                    with suppress(OSError):  # then it may be found again after a restart, and is checked again
                        slab.empty(first, count)

    # -- the end ------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """What was stored so far outlives a loss of power. Raises OSError."""
        for slab in list(self._slabs):
            slab.sync()
        with self._folder.lock:
            if self._folder.fd >= 0:
                self._folder.files.sync_folder(self._folder.fd)

    def close_slabs(self) -> None:
        for slab in self._slabs:
            slab.close()
        self._slabs = []

    def sizes(self) -> int:
        """Bytes of our files in the folder, asked of the file system."""
        files, fd = self._folder.files, self._folder.fd
        return sum(files.stat_name(fd, str(name)).st_size for name in self._folder.slab_names())


def place_of(slot: Slot) -> Place:
    assert isinstance(slot.place, Place)
    return slot.place


def _by_slab(slots: Sequence[Slot], items: Sequence[Item]) -> list[tuple[Slab, list[Item]]]:
    """Items that have no result yet, by the slab they go to or come from."""
    batches: dict[Slab, list[Item]] = {}
    for slot, item in zip(slots, items, strict=True):
        used = place_of(slot).used
        if item.result is None and used is not None:
            batches.setdefault(used, []).append(item)
    return list(batches.items())


def _neighbours(slots: list[int]) -> list[tuple[int, int]]:
    """(first, count) of every run of consecutive numbers."""
    numbers = np.sort(np.array(slots))
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    counts = np.diff(starts, append=len(numbers))
    return list(zip(numbers[starts].tolist(), counts.tolist(), strict=True))
