"""Batches of pages to and from slabs: neighbouring slots in one system call. Worker threads; changes no book.

    store    1 the slots' headers are emptied    2 the payloads    3 the headers
    load     1 the slots' headers are read       2 the payloads    3 checksums

Nothing is synced in between. Whichever of these writes a crash or a lost cache leaves undone, or does in another order,
a page is found only if its header is whole and its payload has the checksum that the header names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from kvpager.checksum import checksums
from kvpager.errors import TierError, WrongContent
from kvpager.tiers.disk.extents import NO_PARENT
from kvpager.tiers.disk.faults import fault
from kvpager.tiers.disk.format import BLOCK, HEADER, begin_header, is_whole, name_page, round_up
from kvpager.tiers.disk.payload import PayloadCodec, scratch
from kvpager.tiers.disk.slab import MOST_BUFFERS, Slab
from kvpager.types import ContentKey


@dataclass(slots=True)
class Item:
    """One page of a batch. ``slot``: its number in its slab. ``result``: its checksum, or what went wrong."""

    slot: int
    key: ContentKey
    memory: np.ndarray
    parent: ContentKey = NO_PARENT
    checksum: int | None = None
    result: int | TierError | None = None


class Transfers:
    def __init__(self, page_bytes: int, codec: PayloadCodec, identity: bytes) -> None:
        self.slot_bytes = round_up(page_bytes)
        self._page_bytes = page_bytes
        self._codec = codec
        self._identity = identity
        self._generations = count()

    def start_after(self, generation: int) -> None:
        """Pages stored from now on are newer than that."""
        self._generations = count(generation + 1)

    def store(self, slab: Slab, items: Sequence[Item]) -> None:
        for item, page_crc in zip(items, checksums([item.memory for item in items]), strict=True):
            item.result = page_crc
            if item.checksum not in (None, page_crc):
                item.result = WrongContent("source: a page is not what it was when it left the device")
        for run in _runs([item for item in items if not isinstance(item.result, TierError)]):
            try:
                self._store_run(slab, run)
            except OSError as error:
                for item in run:
                    item.result = fault(error, "a page can't be written")

    def _store_run(self, slab: Slab, run: list[Item]) -> None:
        headers, payloads = np.zeros(len(run), HEADER), []
        for at, item in enumerate(run):
            assert isinstance(item.result, int)
            header = headers[at : at + 1]
            begin_header(header, slab.superblock.slab, item.slot, next(self._generations))
            name_page(header, item.key, item.parent, self._identity)
            payloads.append(self._codec.encode(item.memory, item.result, header))
        slab.empty(run[0].slot, len(run))
        buffers = self._as_slots(slab, payloads)
        if self._codec.is_packed:  # page by page, and no more of each than there is
            for item, buffer, payload in zip(run, buffers, payloads, strict=True):
                slab.write_slots(item.slot, [buffer[: round_up(payload.nbytes)]])
        else:
            slab.write_slots(run[0].slot, buffers)
        slab.write_headers(run[0].slot, headers)

    def load(self, slab: Slab, items: Sequence[Item]) -> None:
        for run in _runs(items):
            self._load_run(slab, run)

    def _load_run(self, slab: Slab, run: list[Item]) -> None:
        buffers = self._landing(slab, run)
        try:
            headers = slab.read_headers(run[0].slot, len(run))
            is_there = headers is not None and self._read_payloads(slab, run, headers, buffers)
        except OSError as error:
            if len(run) > 1:  # so that one bad sector costs one page
                for item in run:
                    self._load_run(slab, [item])
            else:
                run[0].result = fault(error, "a page can't be read")
            return
        if headers is None or not is_there:
            for item in run:
                item.result = WrongContent("short: a slab is shorter than it was")
            return
        whole = is_whole(headers, slab.superblock, run[0].slot)
        for at, item in enumerate(run):
            try:
                item.result = self._decode(headers[at : at + 1], bool(whole[at]), buffers[at], item)
            except WrongContent as error:
                item.result = error

    def _read_payloads(
        self, slab: Slab, run: Sequence[Item], headers: np.ndarray, buffers: Sequence[np.ndarray]
    ) -> bool:
        if not self._codec.is_packed:
            return slab.read_slots(run[0].slot, buffers)
        lengths = np.clip(headers["payload_bytes"], 1, self.slot_bytes).tolist()  # no header was checked yet
        parts = zip(run, buffers, lengths, strict=True)
        return all(slab.read_slots(item.slot, [buffer[: round_up(length)]]) for item, buffer, length in parts)

    def _decode(self, header: np.ndarray, is_header_whole: bool, buffer: np.ndarray, item: Item) -> int:
        if not is_header_whole:
            raise WrongContent("header: the header of a page on disk is damaged")
        if header["key"].tobytes() != item.key or header["identity"].tobytes() != self._identity:
            raise WrongContent("key: a slot on disk holds another page")
        if buffer is item.memory:
            return self._codec.decode(header, buffer, buffer)
        return self._codec.decode(header, buffer[: int(header["payload_bytes"][0])], item.memory)

    # -- memory that can be written or read as it is ----------------------------------------------------------------

    def _fits(self, slab: Slab, pages: Sequence[np.ndarray]) -> bool:
        if not self._codec.is_plain or self._page_bytes != self.slot_bytes:
            return False
        return not slab.is_direct or all(page.ctypes.data % BLOCK == 0 for page in pages)

    def _as_slots(self, slab: Slab, payloads: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        if self._fits(slab, payloads):
            return payloads
        slots = scratch("written", len(payloads), self.slot_bytes)
        for slot, payload in zip(slots, payloads, strict=True):
            slot[: payload.nbytes] = payload
            slot[payload.nbytes :] = 0
        return list(slots)

    def _landing(self, slab: Slab, run: Sequence[Item]) -> Sequence[np.ndarray]:
        pages = [item.memory for item in run]
        return pages if self._fits(slab, pages) else list(scratch("read", len(run), self.slot_bytes))


def _runs(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Items of neighbouring slots, as many as one call moves."""
    run: list[Item] = []
    for item in sorted(items, key=lambda item: item.slot):
        if run and (item.slot != run[-1].slot + 1 or len(run) == MOST_BUFFERS):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
