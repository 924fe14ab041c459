"""How long a folder full of pages takes until a page in it is found: what a restart waits for.

The folder is made by the disk tier itself: real slabs and real headers. Payloads are left as the file system gives
them, allocated and never written, but for the last page, which is read back and compared. Before it is opened, the
files are taken out of the page cache.
"""

import shutil
import statistics
import time
from hashlib import sha256
from pathlib import Path

import numpy as np

from kvpager.bench.page_cache import out_of_page_cache
from kvpager.bench.report import SEED, Result
from kvpager.bench.tiers_disk import open_disk
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_traffic import LAYOUT
from kvpager.errors import InvariantError
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.disk.files import Buffers, SystemFiles
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey

AT_MOST = 2.0
_BATCH = 256
_ROOT = ContentKey(bytes(32))


def measure(scale: TierScale, folder: Path, layout: KVLayout = LAYOUT) -> list[Result]:
    """Sizes that the file system has no room for are left out."""
    seconds: dict[int, float] = {}
    results = []
    for num_bytes in scale.restart_bytes:
        if shutil.disk_usage(folder).free < 1.1 * num_bytes + (1 << 30):
            continue
        path = folder / "restart"
        try:
            pages = _fill(path, num_bytes, layout)
            rounds = [_open(path, num_bytes, pages, layout) for _ in range(scale.rounds)]
        finally:
            shutil.rmtree(path, ignore_errors=True)
        seconds[num_bytes] = statistics.median(rounds)
        name = f"restart_{num_bytes / 1e9:g}gb_seconds"
        limit = AT_MOST if num_bytes == 20 * 10**9 else None
        results.append(Result(name, seconds[num_bytes], "s", at_most=limit, spread=(min(rounds), max(rounds))))
    if len(seconds) > 1:
        sizes = sorted(seconds)
        slope = (seconds[sizes[-1]] - seconds[sizes[0]]) / (sizes[-1] - sizes[0])
        beyond = seconds[sizes[-1]] + slope * (100e9 - sizes[-1])
        results.append(Result("restart_100gb_seconds/extrapolated", beyond, "s"))
    return results


class _WithoutPayloads(SystemFiles):
    """Leaves out what is written to slots, while ``is_leaving_out``."""

    def __init__(self, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self.is_leaving_out = True

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int:
        size = sum(buffer.nbytes for buffer in buffers)
        if self.is_leaving_out and all(buffer.nbytes == self._slot_bytes for buffer in buffers):
            return size
        return super().pwritev(fd, buffers, offset)


def _fill(path: Path, num_bytes: int, layout: KVLayout) -> int:
    """Stores pages of ``num_bytes`` together; returns how many."""
    count = num_bytes // layout.block_stride
    files = _WithoutPayloads(layout.block_stride)
    content = _content(layout)
    store = open_disk(path, num_bytes, layout, files)
    for first in range(0, count, _BATCH):
        numbers = range(first, min(count, first + _BATCH))
        _store(store, numbers[:-1], content)
        files.is_leaving_out = numbers[-1] != count - 1
        _store(store, numbers[-1:], content)
    store.check()
    store.close()
    out_of_page_cache(path)
    return count


def _store(store: DiskStore, numbers: range, content: np.ndarray) -> None:
    slots = [store.prepare_store(_page(number)) for number in numbers]
    found = [slot for slot in slots if slot is not None]
    for slot, error in zip(found, store.write(found, [content] * len(found)), strict=True):
        store.complete_store(slot, error)
        if error is not None:
            raise InvariantError(f"a page could not be stored; it was not timed: {error}")
    store.tick()
    if len(found) != len(numbers):
        raise InvariantError("the folder is full before it is; it was not timed")


def _open(path: Path, num_bytes: int, pages: int, layout: KVLayout) -> float:
    """Seconds until the last page is found, and its bytes are back."""
    out_of_page_cache(path)
    into = _aligned(layout.block_stride)
    begin = time.perf_counter()
    store = open_disk(path, num_bytes, layout)
    slot = store.prepare_load(_page(pages - 1).key)
    result = None if slot is None else store.read([slot], [into])[0]
    seconds = time.perf_counter() - begin
    if slot is None or not isinstance(result, int) or not np.array_equal(into, _content(layout)):
        raise InvariantError(f"the last page is not what was stored; it was not timed: {result}")
    store.complete_load(slot, None)
    if store.statistics().pages != pages:
        raise InvariantError(f"{store.statistics().pages} of {pages} pages were found; it was not timed")
    store.close()
    return seconds


def _page(number: int) -> Page:
    return Page(ContentKey(sha256(number.to_bytes(8, "little")).digest()), _ROOT)


def _content(layout: KVLayout) -> np.ndarray:
    content = _aligned(layout.block_stride)
    content[:] = np.random.default_rng(SEED).integers(0, 256, layout.block_stride, np.uint8)
    return content


def _aligned(num_bytes: int) -> np.ndarray:
    """Memory that direct access takes."""
    return HostArena(1, num_bytes).blocks[0]
