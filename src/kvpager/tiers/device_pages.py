"""The device's end of transfers: which blocks they hold, and how bytes leave and reach the device. Knows no index.

A block that lies in ordinary memory is its own bytes. Otherwise a worker thread downloads and uploads it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvpager.checksum import checksum, copy_checksum
from kvpager.errors import TierError
from kvpager.memory.block_pool import BlockPool
from kvpager.tiers.tier import Slot
from kvpager.types import ContentKey, TierKind


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
        return Slot(key, block, self._memory(block))

    def let_go(self, slot: Slot) -> None:
        cached = self._pool.unpin(np.array([slot.index], np.int32)).cached
        self._settled(slot.index, len(cached) > 0)

    def landing(self, block: int, key: ContentKey) -> Slot:
        """A block that is filled. REQUIRES: the caller holds it, and nobody reads it."""
        return Slot(key, block, self._memory(block))

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        arena, found = self._pool.arena, list[int | TierError]()
        for slot, page in zip(slots, into, strict=True):
            if slot.memory is not None:
                found.append(copy_checksum(page, slot.memory))
            else:
                arena.download(slot.index, page)  # type: ignore[attr-defined]
                found.append(checksum(page))
        return found

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        for slot, page in zip(slots, pages, strict=True):
            self._pool.arena.upload(page, slot.index)  # type: ignore[attr-defined]
        return [None] * len(slots)

    def _memory(self, block: int) -> np.ndarray | None:
        """The block's bytes where a processor can reach them."""
        blocks = self._pool.arena.blocks  # type: ignore[attr-defined]
        return blocks[block] if isinstance(blocks, np.ndarray) else None
