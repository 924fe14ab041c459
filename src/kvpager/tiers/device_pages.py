"""The device's end of transfers: which blocks they hold, and how bytes leave and reach the device. Knows no index.

A block that lies in ordinary memory is its own bytes. Otherwise, or where a codec keeps pages in another format below
the device, a worker thread copies it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import local
from typing import Protocol, runtime_checkable

import numpy as np

from kvpager.checksum import checksum, checksums, copy_checksums
from kvpager.errors import TierError, WrongContent
from kvpager.memory.block_pool import BlockPool
from kvpager.tiers.codec import PageCodec
from kvpager.tiers.tier import Page, Slot
from kvpager.types import ContentKey, TierKind


@runtime_checkable
class FarMemory(Protocol):
    """An arena whose bytes have to be copied; tiers/device.py has it for torch devices. In worker threads, but mark."""

    def mark(self) -> object: ...

    def download(self, ids: list[int], pages: list[np.ndarray], after: list[object]) -> None: ...

    def upload(self, pages: list[np.ndarray], ids: list[int], after: list[object]) -> None: ...


class DevicePages:
    """The device's end of transfers. ``taken`` hears which cached blocks a transfer holds; ``settled`` that it let
    some go, and which of them are cached now."""

    kind = TierKind.DEVICE
    name = "device"

    def __init__(
        self,
        pool: BlockPool,
        taken: Callable[[np.ndarray], None],
        settled: Callable[[np.ndarray, np.ndarray], None],
        codec: PageCodec | None = None,
    ) -> None:
        self._pool = pool
        self._taken = taken
        self._settled = settled
        self._codec = codec
        self.page_bytes = pool.arena.block_stride if codec is None else codec.page_bytes
        self.precision = "exact" if codec is None else f"{codec.name}{' (lossy)' if codec.is_lossy else ''}"

    def hold(self, blocks: Sequence[int], pages: Sequence[Page]) -> list[Slot]:
        """Blocks of layer groups that are copied away: they keep their content until ``let_go``. REQUIRES: mapped, held
        or cached."""
        was_cached = self._pool.pin(np.array(blocks, np.int32))
        if len(was_cached):
            self._taken(was_cached)
        return [self._slot(block, page.key, page.group) for block, page in zip(blocks, pages, strict=True)]

    def let_go(self, slots: Sequence[Slot]) -> None:
        blocks = np.array([slot.index for slot in slots], np.int32)
        self._settled(blocks, self._pool.unpin(blocks).cached)

    def landing(self, block: int, key: ContentKey, group: int = 0) -> Slot:
        """A block that is filled. REQUIRES: the caller holds it, and nobody reads it."""
        return self._slot(block, key, group)

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> list[int | TierError]:
        sources = [slot.memory for slot in slots if slot.memory is not None]
        if len(sources) == len(slots):
            return list(copy_checksums(into, sources))
        if self._codec is None:
            self._download(slots, into)
            return list(checksums(into))
        return [self._encode(self._codec, slot, page) for slot, page in zip(slots, into, strict=True)]

    def write(self, slots: Sequence[Slot], pages: Sequence[np.ndarray]) -> list[TierError | None]:
        errors = [_wrong(slot, page) for slot, page in zip(slots, pages, strict=True)]
        sound = [at for at, error in enumerate(errors) if error is None]
        if self._codec is None:
            self._upload([pages[at] for at in sound], [slots[at] for at in sound])
            return errors
        for at in sound:
            errors[at] = self._decode(self._codec, slots[at], pages[at])
        return errors

    def _encode(self, codec: PageCodec, slot: Slot, page: np.ndarray) -> int | TierError:
        block = self._bytes(slot.index)
        if block is None:
            block = _own_block(self._pool.arena.block_stride)
            self._download([slot], [block])
        try:
            codec.encode(block, page, _place(slot).group)
        except TierError as error:
            return error
        return checksum(page)

    def _decode(self, codec: PageCodec, slot: Slot, page: np.ndarray) -> TierError | None:
        block = self._bytes(slot.index)
        target = _own_block(self._pool.arena.block_stride) if block is None else block
        try:
            codec.decode(page, target, _place(slot).group)
        except TierError as error:
            return error
        if block is None:
            self._upload([target], [slot])
        return None

    def _download(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> None:
        self._far.download([slot.index for slot in slots], list(into), [_place(slot).mark for slot in slots])

    def _upload(self, pages: Sequence[np.ndarray], slots: Sequence[Slot]) -> None:
        self._far.upload(list(pages), [slot.index for slot in slots], [_place(slot).mark for slot in slots])

    def _slot(self, block: int, key: ContentKey, group: int) -> Slot:
        memory = self._bytes(block)
        if memory is not None and self._codec is None:
            return Slot(key, block, memory)
        return Slot(key, block, place=_Place(group, None if memory is not None else self._far.mark()))

    def _bytes(self, block: int) -> np.ndarray | None:
        """The block itself, where a processor can reach it."""
        blocks = getattr(self._pool.arena, "blocks", None)
        return blocks[block] if isinstance(blocks, np.ndarray) else None

    @property
    def _far(self) -> FarMemory:
        arena = self._pool.arena
        assert isinstance(arena, FarMemory), "memory that no processor can reach has to be copied"
        return arena


@dataclass(frozen=True, slots=True)
class _Place:
    """``mark``: the moment of the device's work after which the block may be touched."""

    group: int
    mark: object


def _place(slot: Slot) -> _Place:
    assert isinstance(slot.place, _Place)
    return slot.place


_thread = local()


def _wrong(slot: Slot, page: np.ndarray) -> TierError | None:
    """What is wrong with a page by its checksum: memory that nobody has read since it was stored may have changed."""
    if slot.checksum is None or slot.checksum == checksum(page):
        return None
    return WrongContent("a page is not what was stored")


def _own_block(size: int) -> np.ndarray:
    """Memory of this thread for one block, used again by its next."""
    block: np.ndarray | None = getattr(_thread, "block", None)
    if block is None or len(block) != size:
        block = _thread.block = np.empty(size, np.uint8)
    return block
