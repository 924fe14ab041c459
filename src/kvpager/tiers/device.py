"""The device tier: the arena of a device, and its usage in bytes. The only file of the tiers that may touch torch.

On "cpu" the arena is plain memory. On CUDA it is one tensor of bytes.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena, HostArena
from kvpager.memory.block_pool import BlockPool
from kvpager.tiers.tier import TierUsage
from kvpager.types import TierKind


class DeviceTier:
    """What the pool of one device holds."""

    kind = TierKind.DEVICE

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def usage(self) -> TierUsage:
        counts = self._pool.counts()
        block_bytes = self._pool.arena.block_stride
        return TierUsage(
            kind=self.kind,
            capacity_bytes=counts.total * block_bytes,
            used_bytes=(counts.total - counts.free) * block_bytes,
            blocks=counts.total,
            free=counts.free,
            used=counts.used,
            cached=counts.cached,
            moving=counts.moving,
        )

    def check(self) -> None:
        self._pool.check()


class TorchArena:
    """Blocks in one uint8 tensor [num_blocks, block_stride] of any torch device. Growing allocates and copies."""

    def __init__(self, device: str, num_blocks: int, block_stride: int, max_blocks: int | None = None) -> None:
        import torch

        self._torch = torch
        self.device = device
        self.block_stride = block_stride
        self.max_blocks = max(num_blocks, max_blocks or 0)
        self.num_blocks = num_blocks
        self.blocks = self._allocate(num_blocks)
        self._thread = threading.local()

    @property
    def address(self) -> int:
        return int(self.blocks.data_ptr())

    def mark(self) -> object:
        """This moment in the order of the device's work; transfers begin when all of it before is done."""
        if self.blocks.device.type != "cuda":
            return None
        event = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def download(self, ids: list[int], pages: list[np.ndarray], after: list[object]) -> None:
        """Copies blocks out, on a stream of the calling thread's own; returns when the bytes are there."""
        with self._copying(after):
            for block, page in zip(ids, pages, strict=True):
                self._torch.from_numpy(page).copy_(self.blocks[block], non_blocking=True)

    def upload(self, pages: list[np.ndarray], ids: list[int], after: list[object]) -> None:
        """Copies pages into blocks; returns when the device has them."""
        with self._copying(after):
            for block, page in zip(ids, pages, strict=True):
                self.blocks[block].copy_(self._torch.from_numpy(page), non_blocking=True)

    @contextmanager
    def _copying(self, after: list[Any]) -> Iterator[None]:
        if self.blocks.device.type != "cuda":
            yield
            return
        stream = getattr(self._thread, "stream", None)
        if stream is None:
            stream = self._thread.stream = self._torch.cuda.Stream(self.blocks.device)  # type: ignore[no-untyped-call]
        for event in after:
            if event is not None:
                stream.wait_event(event)
        with self._torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def resize(self, num_blocks: int) -> None:
        if num_blocks > self.max_blocks:
            raise ConfigError(
                f"the pool can grow to {self.max_blocks} blocks, not {num_blocks}: open it with a larger max"
            )
        blocks = self._allocate(num_blocks)
        kept = min(num_blocks, self.num_blocks)
        blocks[:kept] = self.blocks[:kept]
        self.blocks, self.num_blocks = blocks, num_blocks

    def copy(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self.blocks[self._ids(targets)] = self.blocks[self._ids(sources)]

    def fill(self, ids: np.ndarray, byte: int) -> None:
        self.blocks[self._ids(ids)] = byte

    def is_filled(self, ids: np.ndarray, byte: int) -> np.ndarray:
        filled: np.ndarray = (self.blocks[self._ids(ids)] == byte).all(dim=1).cpu().numpy()
        return filled

    def _allocate(self, num_blocks: int):  # type: ignore[no-untyped-def]  # torch is imported lazily here
        torch = self._torch
        try:
            return torch.zeros((num_blocks, self.block_stride), dtype=torch.uint8, device=self.device)
        except RuntimeError as error:
            raise ConfigError(
                f"can't allocate {num_blocks * self.block_stride} bytes on {self.device!r} for the pool: {error}"
            ) from error

    def _ids(self, ids: np.ndarray):  # type: ignore[no-untyped-def]
        return self._torch.as_tensor(ids.astype(np.int64), device=self.device)


def make_arena(device: str, num_blocks: int, block_stride: int, max_blocks: int) -> Arena:
    """The arena for a device name: "cpu", or what torch calls another device ("cuda", "cuda:1")."""
    if device == "cpu":
        return HostArena(num_blocks, block_stride, max_blocks)
    arena: Arena = TorchArena(device, num_blocks, block_stride, max_blocks)
    return arena


def pin_memory(address: int, size: int) -> None:
    """Tells CUDA that ``size`` bytes of ordinary memory stay where they are, so that copies need no detour.

    Nothing is allocated: torch's own pinned memory is rounded up to powers of two, and a tier holds what it says.
    """
    import torch

    error = torch.cuda.cudart().cudaHostRegister(address, size, 0)  # type: ignore[no-untyped-call]
    if int(error) != 0:
        raise ConfigError(f"CUDA can't pin {size} bytes for the host tier (error {int(error)}); make the tier smaller")


def unpin_memory(address: int) -> None:
    """Before the memory goes."""
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
