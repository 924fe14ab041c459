"""The bytes of transfers, moved by a worker thread. Changes no book: what happened is noted in the transfers.

    target is memory    the source reads straight into it        host -> device, device -> host, disk -> host
    source is memory    the target writes straight from it       device -> disk, host -> disk, host -> remote
    neither             through memory of the worker's own       disk -> remote, and a device that has its own memory

The checksum is made of the bytes as they leave the device and travels with the page: whoever reads a page compares it,
and whoever is given a page with a checksum does too, so that a bit that falls over on the way is seen (I17).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import local
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import TierError, WrongContent
from kvpager.memory.arena import HostArena
from kvpager.tiers.tier import Page, PageSource, PageTarget, Slot

if TYPE_CHECKING:
    from kvpager.tiers.load import Load


@dataclass(slots=True)
class Transfer:
    """One page from ``source`` to ``target``. ``load`` and ``place``: the load it belongs to, and its place in that."""

    page: Page
    source: Slot
    target: Slot
    load: "Load | None" = None
    place: int = 0
    error: TierError | None = None
    was_read: bool = False

    @property
    def is_fault_of_source(self) -> bool:
        """Whether the source could not give the page, or gave a wrong one."""
        return self.error is not None and (not self.was_read or isinstance(self.error, WrongContent))


class Move:
    """A batch of transfers between two tiers, as one job."""

    def __init__(self, source: PageSource, target: PageTarget, transfers: list[Transfer]) -> None:
        self.source = source
        self.target = target
        self.transfers = transfers
        self.error: BaseException | None = None

    def has_load(self, load: "Load") -> bool:
        return any(transfer.load is load for transfer in self.transfers)

    def run(self) -> None:
        begin = perf_counter()
        self._run()
        seconds = (perf_counter() - begin) / len(self.transfers)
        for transfer in self.transfers:
            transfer.source.seconds = transfer.target.seconds = seconds

    def _run(self) -> None:
        landing = _memory([transfer.target for transfer in self.transfers])
        if landing is not None:
            self._read(self.transfers, landing)
            return
        pages = _memory([transfer.source for transfer in self.transfers])
        if pages is None:
            pages = _own_memory(len(self.transfers), self.source.page_bytes)
            self._read(self.transfers, pages)
        else:
            for transfer in self.transfers:
                transfer.target.checksum = transfer.source.checksum
                transfer.was_read = True
        self._write(
            [(transfer, page) for transfer, page in zip(self.transfers, pages, strict=True) if not transfer.error]
        )

    def _read(self, transfers: Sequence[Transfer], into: Sequence[np.ndarray]) -> None:
        results = self.source.read([transfer.source for transfer in transfers], into)
        for transfer, result in zip(transfers, results, strict=True):
            if isinstance(result, TierError):
                transfer.error = result
            else:
                transfer.target.checksum = result
                transfer.was_read = True

    def _write(self, readable: Sequence[tuple[Transfer, np.ndarray]]) -> None:
        if readable:
            errors = self.target.write([transfer.target for transfer, _ in readable], [page for _, page in readable])
            for (transfer, _), error in zip(readable, errors, strict=True):
                transfer.error = error

    def spread_error(self) -> None:
        """If the job as a whole failed, so did each transfer, whatever it had reached."""
        if self.error is not None:
            for transfer in self.transfers:
                transfer.error = TierError(f"{type(self.error).__name__}: {self.error}")


def _memory(slots: Sequence[Slot]) -> list[np.ndarray] | None:
    """The memory of slots of one tier: all of them have some, or none has."""
    found = [slot.memory for slot in slots if slot.memory is not None]
    return found if len(found) == len(slots) else None


_thread = local()


def _own_memory(count: int, page_bytes: int) -> list[np.ndarray]:
    """Page-sized memory of this thread, used again by its next job."""
    arena = getattr(_thread, "arena", None)
    if arena is None or arena.block_stride != page_bytes or arena.num_blocks < count:
        arena = _thread.arena = HostArena(count, page_bytes)
    return list(arena.blocks[:count])
