"""Pages of SmolLM2's size on a device, moved to and from lower tiers by Migration, and compared byte by byte.

A chunk is what is moved at once: the same blocks under other keys, with the number of the chunk written into each page.
"""

import hashlib
import time
from collections.abc import Sequence

import numpy as np

from kvpager.bench.paged_case import SMOL
from kvpager.bench.report import SEED
from kvpager.errors import InvariantError
from kvpager.memory.arena import HostArena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.migration import Migration, WriteBack
from kvpager.tiers.mover import ThreadMover
from kvpager.tiers.tier import LowerTier, Page
from kvpager.types import ContentKey

LAYOUT = KVLayout(layers=30, kv_heads=SMOL.kv_heads, head_dim=SMOL.head_dim, dtype="bfloat16")
PAGE_BYTES = LAYOUT.block_stride
_ROOT = ContentKey(bytes(32))
_NO_LIMIT = 1 << 60


class Traffic:
    """``num_pages`` random pages, as many blocks to bring them back to, and ``stores`` below."""

    def __init__(self, stores: Sequence[LowerTier], num_pages: int, layout: KVLayout = LAYOUT) -> None:
        self.num_pages = num_pages
        self.arena = HostArena(2 * num_pages, layout.block_stride)
        self.arena.blocks[:] = np.random.default_rng(SEED).integers(0, 256, (1, layout.block_stride), np.uint8)
        pool = BlockPool(layout, self.arena)
        ids = np.random.default_rng(SEED).permutation(pool.allocate(2 * num_pages))
        self.sources, self.targets = ids[:num_pages], ids[num_pages:]
        self._stores = list(stores)
        self._migration = Migration(
            DevicePages(pool, lambda blocks: None, lambda blocks, cached: None),
            self._stores,
            ThreadMover(lanes(self._stores)),
            time.perf_counter,
            write_back=WriteBack.BACK,
            max_moving_bytes=_NO_LIMIT,
            load_deadline=None,
        )

    def stamp(self, chunk: int) -> None:
        """From now on the device holds this chunk: each page says which one it is, and of which chunk."""
        stamps = self.arena.blocks[:, :16].view("<u8")
        stamps[self.sources, 0] = chunk
        stamps[self.sources, 1] = np.arange(self.num_pages)

    def down(self, chunk: int) -> float:
        """Seconds until the nearest tier with room has the chunk that the device holds."""
        pages = self._pages(chunk)
        begin = time.perf_counter()
        accepted = self._migration.demote(zip(pages, self.sources.tolist(), strict=True), leaving=True)
        self._wait()
        seconds = time.perf_counter() - begin
        if len(accepted) != self.num_pages:
            raise InvariantError(f"{self.num_pages - len(accepted)} pages were refused; it was not timed")
        return seconds

    def further_down(self) -> float:
        """Seconds until what is in the first tier is also in the next one, which is persistent."""
        begin = time.perf_counter()
        self._migration.flush([], 600.0)
        self._wait()
        return time.perf_counter() - begin

    def up(self, chunk: int) -> float:
        """Seconds until a chunk is back on the device, in other blocks."""
        pages, blocks = self._pages(chunk), self.targets.tolist()
        begin = time.perf_counter()
        load = self._migration.load(pages, blocks)
        self._wait()
        seconds = time.perf_counter() - begin
        failed = [error for error in load.errors if error is not None]
        if failed:
            raise InvariantError(f"{len(failed)} pages did not come back; it was not timed: {failed[0]}")
        return seconds

    def check(self, chunk: int) -> None:
        """Brings a chunk back and compares every byte. The device must hold it."""
        self.arena.blocks[self.targets] = 0
        self.up(chunk)
        self.compare("a page that was moved down and up")

    def compare(self, what: str) -> None:
        """Whether the blocks to bring pages back to hold what the device holds."""
        for source, target in zip(self.sources, self.targets, strict=True):
            if not np.array_equal(self.arena.blocks[source], self.arena.blocks[target]):
                raise InvariantError(f"{what}: the bytes differ; it was not timed")

    def close(self) -> None:
        self._migration.check()
        self._migration.close(60.0)

    def _wait(self) -> None:
        while self._migration.num_open:
            self._migration.wait(1.0)

    def _pages(self, chunk: int) -> list[Page]:
        names = (f"chunk {chunk} page {number}" for number in range(self.num_pages))
        return [Page(ContentKey(hashlib.sha256(name.encode()).digest()), _ROOT) for name in names]


def lanes(stores: Sequence[LowerTier]) -> dict[str, int]:
    """What a mover is told of its tiers: how many threads each direction has."""
    loads = {f"{store.name} load": store.load_threads for store in stores}
    return loads | {f"{store.name} store": store.store_threads for store in stores}
