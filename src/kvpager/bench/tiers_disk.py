"""Whole pages to and from the disk tier, against fio in the same folder: as large blocks, as many threads.

Both keep a file that is written from end to end once, and then written and read chunk by chunk, the oldest first: what
is read was written long ago. Where the file system has direct access both go past the page cache.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvpager.bench.fio import FioFile
from kvpager.bench.interleaved import measure_in_turn
from kvpager.bench.report import Result
from kvpager.bench.tiers_scale import TierScale
from kvpager.bench.tiers_traffic import LAYOUT, Traffic
from kvpager.eviction.lru import LRU
from kvpager.memory.layout import KVLayout
from kvpager.tiers.disk.files import DIRECT, Files
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.host import HostStore
from kvpager.tiers.tier import LowerTier

DISK_SHARE = 0.9
_SLAB_OVERHEAD = 1.05


def measure(scale: TierScale, folder: Path, layout: KVLayout = LAYOUT) -> list[Result]:
    """Needs fio."""
    rates = _from_device(scale, folder, layout)
    return [*rates, *_from_host(scale, folder, layout)]


def open_disk(folder: Path, num_bytes: int, layout: KVLayout = LAYOUT, files: Files | None = None) -> DiskStore:
    """A disk tier with room for pages of ``num_bytes`` together."""
    return DiskStore(
        str(folder),
        layout.block_stride,
        int(num_bytes * _SLAB_OVERHEAD) + (1 << 20),
        LRU,
        identity=bytes(32),
        clock=time.monotonic,
        files=files,
    )


def has_direct_access(folder: Path) -> bool:
    """Whether files of the folder can be read and written past the page cache."""
    path = folder / "direct.bin"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | DIRECT, 0o600))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return DIRECT != 0


class _Rounds:
    """Chunks in a folder that holds ``num_chunks``: each new one takes the place of the oldest."""

    def __init__(self, stores: list[LowerTier], scale: TierScale, layout: KVLayout) -> None:
        self._stores = stores
        self._num_chunks = scale.disk_chunks
        self.traffic = Traffic(stores, scale.chunk_pages, layout)
        self._newest = self._read = 0
        for _ in range(self._num_chunks):
            self.write()
            self.traffic.check(self._newest)

    def write(self) -> float:
        """Seconds to the last tier: from the device, or from the host where there is one."""
        self._newest += 1
        self.traffic.stamp(self._newest)
        if len(self._stores) == 1:
            return self.traffic.down(self._newest)
        self._stores[0].clear()
        self.traffic.down(self._newest)
        seconds = self.traffic.further_down()
        self._stores[0].clear()  # what is read next comes from the disk
        return seconds

    def read(self) -> float:
        """Reads one of the chunks that stay until all others were written."""
        oldest = self._newest - self._num_chunks + 1
        self._read = max(oldest, (self._read + 1 - oldest) % self._num_chunks + oldest)
        return self.traffic.up(self._read)

    def check(self) -> None:
        self.traffic.check(self._newest)


class _FioRounds:
    """The same with fio: its file is as long as all chunks."""

    def __init__(self, folder: Path, scale: TierScale, block_bytes: int, jobs: int, is_direct: bool) -> None:
        self._pages, self._chunks, self._turn = scale.chunk_pages, scale.disk_chunks, 0
        num_blocks = self._pages * self._chunks
        self._file = FioFile(folder / "fio.bin", (num_blocks + jobs) * block_bytes, block_bytes, jobs, is_direct)
        self._file.write(0, num_blocks)

    def write(self) -> float:
        return self._file.write(self._next(), self._pages)

    def read(self) -> float:
        return self._file.read(self._next(), self._pages)

    def _next(self) -> int:
        self._turn = (self._turn + 1) % self._chunks
        return self._turn * self._pages


@contextmanager
def _opened(store: DiskStore, scale: TierScale, layout: KVLayout, *above: LowerTier) -> Iterator[_Rounds]:
    rounds = _Rounds([*above, store], scale, layout)
    try:
        yield rounds
        rounds.check()
    finally:
        rounds.traffic.close()


def _from_device(scale: TierScale, folder: Path, layout: KVLayout) -> list[Result]:
    chunk_bytes = scale.chunk_pages * layout.block_stride
    store = open_disk(folder / "pages", scale.disk_chunks * chunk_bytes, layout)
    with _opened(store, scale, layout) as ours:
        fio = _FioRounds(folder, scale, layout.block_stride, store.store_threads, has_direct_access(folder))
        writes = measure_in_turn([ours.write, fio.write], scale.seconds, scale.rounds)
        reads = measure_in_turn([ours.read, fio.read], scale.seconds, scale.rounds)
    return [
        writes.ratio(1, 0).result("disk_write_fio_share", "share", at_least=DISK_SHARE),
        reads.ratio(1, 0).result("disk_read_fio_share", "share", at_least=DISK_SHARE),
        Result("disk_write_rate", chunk_bytes / writes.median(0) / 1e9, "GB/s"),
        Result("disk_read_rate", chunk_bytes / reads.median(0) / 1e9, "GB/s"),
        Result("disk_write_rate/fio", chunk_bytes / writes.median(1) / 1e9, "GB/s"),
        Result("disk_read_rate/fio", chunk_bytes / reads.median(1) / 1e9, "GB/s"),
    ]


def _from_host(scale: TierScale, folder: Path, layout: KVLayout) -> list[Result]:
    """From the host tier: without a device in between, and none of its books."""
    chunk_bytes = scale.chunk_pages * layout.block_stride
    host = HostStore(layout.block_stride, 2 * scale.chunk_pages, LRU(2 * scale.chunk_pages))
    store = open_disk(folder / "pages_of_host", scale.disk_chunks * chunk_bytes, layout)
    with _opened(store, scale, layout, host) as ours:
        fio = _FioRounds(folder, scale, layout.block_stride, store.store_threads, has_direct_access(folder))
        writes = measure_in_turn([ours.write, fio.write], scale.seconds, scale.rounds)
    return [writes.ratio(1, 0).result("disk_write_fio_share/from_host", "share", at_least=DISK_SHARE)]
