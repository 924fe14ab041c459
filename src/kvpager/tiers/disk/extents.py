"""Which slot number of the books lies in which slab, and which slabs are still to be made. Bookkeeping thread.

    slot numbers   0 ......... 99 | 100 ..... 199 | 200 ..... 299 | ...
    extents        slab 3           slab 7          planned          planned up to the capacity

An extent is planned until a worker makes its slab, which may turn out shorter: the rest then is an extent of its own.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from kvpager.errors import InvariantError
from kvpager.tiers.disk.format import Shape
from kvpager.tiers.disk.slab import Slab
from kvpager.types import ContentKey

NO_PARENT = ContentKey(bytes(32))

_SLABS = 8  # that a capacity is divided into, as long as they don't get larger than
_LARGE = 256 << 20  # bytes; beyond
_MOST_SLABS = 64  # of these they get larger again, since each costs two descriptors


@dataclass(slots=True, eq=False)
class Extent:
    """Slots ``first`` to ``first + count - 1``. ``slab`` is set by the worker that makes it; ``is_settled``: the books
    have seen it."""

    first: int
    count: int
    slab: Slab | None = None
    is_settled: bool = False

    @property
    def slots(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(slots=True)
class Place:
    """Where a transfer finds its slot. Set by the worker: ``used``, the slab it was written to or read from."""

    extent: Extent
    parent: ContentKey = NO_PARENT
    used: Slab | None = None
    was_tried: bool = False


class Extents:
    def __init__(self) -> None:
        self._extents: list[Extent] = []
        self.num_slots = 0

    def __iter__(self) -> Iterator[Extent]:
        return iter(self._extents)

    def add(self, count: int, slab: Slab | None = None) -> Extent:
        extent = Extent(self.num_slots, count, slab, is_settled=slab is not None)
        self._extents.append(extent)
        self.num_slots += count
        return extent

    def plan(self, room: int, capacity: int, slot_bytes: int) -> None:
        """Extents for slabs to come, in ``room`` bytes."""
        usual = usual_slots(capacity, slot_bytes)
        while count := min(usual, Shape.most_slots(room, slot_bytes)):
            self.add(count)
            room -= Shape(count, slot_bytes).file_bytes

    def of(self, slot: int) -> Extent:
        return self._extents[bisect_right(self._extents, slot, key=lambda extent: extent.first) - 1]

    def planned(self) -> list[Extent]:
        return [extent for extent in self._extents if extent.slab is None]

    def shorten(self, extent: Extent) -> None:
        """It ends where its slab does; what is left of it is an extent of its own, which is planned."""
        assert extent.slab is not None
        made = extent.slab.shape.slots
        rest = Extent(extent.first + made, extent.count - made)
        self._extents.insert(self._extents.index(extent) + 1, rest)
        extent.count = made

    def check(self) -> None:
        at = 0
        for extent in self._extents:
            if extent.first != at or extent.count < 1:
                raise InvariantError("the extents of a disk tier do not cover its slots")
            at += extent.count
        if at != self.num_slots:
            raise InvariantError("the extents of a disk tier do not cover its slots")


def usual_slots(capacity: int, slot_bytes: int) -> int:
    """Slots of a slab: at least one, if it fits at all."""
    file_bytes = min(capacity // _SLABS, max(_LARGE, capacity // _MOST_SLABS))
    return max(1, Shape.most_slots(file_bytes, slot_bytes))
