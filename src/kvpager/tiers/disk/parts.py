"""Reads the same range of many slots at once. Worker threads; knows no books, and verifies nothing.

Past the page cache, ranges and memory have to be whole blocks. Others cost a copy: the blocks around such a range are
read elsewhere.
"""

import os
from collections.abc import Sequence

import numpy as np

from kvpager.errors import TierError, WrongContent
from kvpager.tiers.disk.faults import fault
from kvpager.tiers.disk.files import Files
from kvpager.tiers.disk.payload import scratch
from kvpager.tiers.disk.slab import Slab

_NO_FILE = -1


def read_parts(
    files: Files, places: Sequence[tuple[Slab | None, int]], start: int, into: np.ndarray, alignment: int
) -> list[TierError | None]:
    """Bytes from ``start`` on of ``places[i]`` (slab, slot in it) to ``into[i]``. A slab that is None is gone."""
    fds = np.array([_NO_FILE if slab is None else slab.payload_fd for slab, _ in places], np.int32)
    offsets = np.array([0 if slab is None else slab.shape.slot_at(slot) for slab, slot in places], np.int64)
    size = into.shape[1]
    if all(each % alignment == 0 for each in (start, size, into.ctypes.data, into.strides[0])):
        found = files.read_many(fds, offsets + start, into)
    else:
        lead = start % alignment
        whole = -(-(lead + size) // alignment) * alignment
        around = scratch("parts", len(into), whole)
        found = files.read_many(fds, offsets + start - lead, around)
        into[:] = around[:, lead : lead + size]
        found = np.where(found < 0, found, np.clip(found - lead, 0, size))
    return [
        None if done == size and slab is not None else _error(slab, done)
        for (slab, _), done in zip(places, found.tolist(), strict=True)
    ]


def _error(slab: Slab | None, done: int) -> TierError:
    if slab is None:
        return WrongContent("removed: the file of a page is gone")
    if done < 0:
        return fault(OSError(-done, os.strerror(-done)), "a part of a page can't be read")
    return WrongContent("short: a slab is shorter than it was")
