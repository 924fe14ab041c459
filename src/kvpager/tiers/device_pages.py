"""The device's end of transfers: which blocks they hold, and how bytes leave and reach the device. Knows no index.

A block that lies in ordinary memory is its own bytes. Otherwise a worker thread downloads and uploads it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from kvpager.checksum import checksum, copy_checksum
from kvpager.errors import TierError
from kvpager.memory.block_pool import BlockPool
from kvpager.tiers.tier import Slot
from kvpager.types import ContentKey, TierKind


@runtime_checkable
class FarMemory(Protocol):
    """An arena whose bytes have to be copied; tiers/device.py has it for torch devices. In worker threads, but mark."""

    def mark(self) -> object: ...

    def download(self, ids: list[int], pages: list[np.ndarray], after: list[object]) -> None: ...

    def upload(self, pages: list[np.ndarray], ids: list[int], after: list[object]) -> None: ...


class DevicePages:
    """The device's end of transfers. ``taken`` hears which cached blocks a transfer holds; ``settled`` that it let one
    go, and whether that is cached now."""

    kind = TierKind.DEVICE
    name = "device"

    def __init__(
        self, pool: BlockPool, taken: Callable[[np.ndarray], None], settled: Callable[[int, bool], None]
    ) -> None:
        self._pool = pool
        self._taken = taken
        self._settled = settled
        self.page_bytes = pool.arena.block_stride

    def hold(self, block: int, key: ContentKey) -> Slot:
        """A block that is copied away: it keeps its content until ``let_go``. REQUIRES: mapped, or held already."""
        was_cached = self._pool.pin(np.array([block], np.int32))
        if len(was_cached):
            self._taken(was_cached)
        return self._slot(block, key)

    def let_go(self, slot: Slot) -> None:
        cached = self._pool.unpin(np.array([slot.index], np.int32)).cached
        self._settled(slot.index, len(cached) > 0)

    def landing(self, block: int, key: ContentKey) -> Slot:
        """A block that is filled. REQUIRES: the caller holds it, and nobody reads it."""
        return self._slot(block, key)

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        sources = [slot.memory for slot in slots if slot.memory is not None]
        if len(sources) == len(slots):
            return [copy_checksum(page, source) for page, source in zip(into, sources, strict=True)]
        self._far.download([slot.index for slot in slots], list(into), [slot.place for slot in slots])
        return [checksum(page) for page in into]

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        self._far.upload(list(pages), [slot.index for slot in slots], [slot.place for slot in slots])
        return [None] * len(slots)

    def _slot(self, block: int, key: ContentKey) -> Slot:
        blocks = getattr(self._pool.arena, "blocks", None)
        if isinstance(blocks, np.ndarray):
            return Slot(key, block, blocks[block])
        return Slot(key, block, place=self._far.mark())

    @property
    def _far(self) -> FarMemory:
        arena = self._pool.arena
        assert isinstance(arena, FarMemory), "memory that no processor can reach has to be copied"
        return arena
