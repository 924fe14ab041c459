"""The bytes of the device pool: one aligned, preallocated range cut into blocks. Knows no states and no pages.

On CPU it is a private anonymous mapping with huge pages advised (on shared memory the advice does nothing). The
address range for the largest size the pool may grow to is reserved at once and costs nothing until it is touched, so
blocks never move when the pool grows and pages given back by a shrink return to the system.
"""

import mmap
from typing import Protocol

import numpy as np

from kvpager import native
from kvpager.errors import ConfigError

_HUGE_PAGE = 2 << 20
_MAP_NORESERVE = 0x4000  # Linux; Python names it only from 3.13 on


class Arena(Protocol):
    """What a device has to offer to hold blocks. Calls are made by the one thread that owns the bookkeeping."""

    device: str
    block_stride: int  # bytes from one block to the next
    num_blocks: int
    max_blocks: int

    @property
    def address(self) -> int:
        """Byte address of block 0."""
        ...

    def resize(self, num_blocks: int) -> None:
        """Makes the arena hold ``num_blocks``; bytes of blocks that stay are kept. REQUIRES: no step is open."""
        ...

    def copy(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Copies whole blocks, ``targets[i]`` from ``sources[i]``. REQUIRES: no block is both."""
        ...

    def fill(self, ids: np.ndarray, byte: int) -> None:
        """Sets every byte of the blocks ``ids``."""
        ...

    def is_filled(self, ids: np.ndarray, byte: int) -> np.ndarray:
        """Bool per block: whether every byte is ``byte``."""
        ...


class HostArena:
    """Blocks in ordinary memory, for the device "cpu". ``blocks`` is uint8 [num_blocks, block_stride]."""

    device = "cpu"

    def __init__(self, num_blocks: int, block_stride: int, max_blocks: int | None = None) -> None:
        self.block_stride = block_stride
        self.max_blocks = max(num_blocks, max_blocks or 0)
        reserved = self.max_blocks * block_stride + _HUGE_PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._mapping = mmap.mmap(-1, reserved, flags=flags)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"can't reserve {reserved} bytes of address space for the pool ({error}); ask for a smaller capacity"
            ) from error
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._mapping, np.uint8)
        self._offset = -whole.ctypes.data % _HUGE_PAGE
        self._whole = whole
        self.num_blocks = 0
        self.resize(num_blocks)

    @property
    def address(self) -> int:
        return int(self.blocks.ctypes.data)

    def resize(self, num_blocks: int) -> None:
        if num_blocks > self.max_blocks:
            raise ConfigError(
                f"the pool can grow to {self.max_blocks} blocks, not {num_blocks}: open it with a larger max"
            )
        start, stop = self._byte_of(num_blocks), self._byte_of(self.num_blocks)
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if first < stop:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, stop - first)
        self.num_blocks = num_blocks
        used = self._whole[self._offset : self._byte_of(num_blocks)]
        self.blocks = used.reshape(num_blocks, self.block_stride)

    def copy(self, sources: np.ndarray, targets: np.ndarray) -> None:
        kernels = native.module()
        if kernels is None:
            self.blocks[targets] = self.blocks[sources]
            return
        stride = self.block_stride
        pool = kernels.Blocks(address=self.address, num_blocks=self.num_blocks, stride=stride, bytes=stride)
        kernels.copy_blocks(pool, sources, targets)

    def fill(self, ids: np.ndarray, byte: int) -> None:
        self.blocks[ids] = byte

    def is_filled(self, ids: np.ndarray, byte: int) -> np.ndarray:
        return (self.blocks[ids] == byte).all(axis=1)

    def _byte_of(self, block: int) -> int:
        return self._offset + block * self.block_stride
