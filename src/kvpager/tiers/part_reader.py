"""Reads some parts of held pages into memory and compares them with their checksums. Worker threads; knows no window.

checksums known      tier --read_parts--> row, compared with the part's checksum
not known yet        tier --read--> page, compared with the page's own; the checksums of all of its parts are noted,
                     and this one is copied to the row
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import local

import numpy as np

from kvpager.checksum import row_checksums
from kvpager.errors import TierError, WrongContent
from kvpager.memory.arena import HostArena
from kvpager.tiers.staging import PartRequest
from kvpager.tiers.tier import LowerTier

_SCRATCH_BYTES = 4 << 20  # of pages that are read whole, at least one
_LINE = 64  # bytes of a cache line: rows begin with one


@dataclass(frozen=True, slots=True)
class RowShape:
    """How one part lies in memory: ``lead`` bytes before it that come along, ``stride`` bytes from row to row.

    ``width``: bytes of a row that are read.
    """

    lead: int
    width: int
    stride: int

    @classmethod
    def of(cls, request: PartRequest, alignment: int) -> "RowShape":
        lead = request.start % alignment
        width = _up(lead + request.size, alignment)
        return cls(lead, width, _up(width, _LINE))


def read_rows(
    tier: LowerTier, request: PartRequest, first: int, rows: np.ndarray, shape: RowShape
) -> tuple[dict[int, TierError], int]:
    """Fills ``rows`` (uint8 [n, width]) with the parts ``first`` to ``first + n`` of a request.

    Errors by number of the part in the request, and bytes read.
    """
    numbers = np.arange(first, first + len(rows))
    is_known = request.is_known[request.pages[numbers]]
    if is_known.all():
        errors = _read_known(tier, request, numbers, rows, shape)
        return errors, request.size * len(rows)
    errors = {}
    for at in _batches(np.flatnonzero(~is_known), max(1, _SCRATCH_BYTES // tier.page_bytes)):
        errors |= _read_whole(tier, request, numbers[at], [rows[each] for each in at.tolist()], shape)
    num_bytes = tier.page_bytes * int((~is_known).sum())
    for at in _batches(np.flatnonzero(is_known), 1):  # few: they became known while this request was being made
        errors |= _read_known(tier, request, numbers[at], rows[at[0] : at[0] + 1], shape)
        num_bytes += request.size
    return errors, num_bytes


def _read_known(
    tier: LowerTier, request: PartRequest, numbers: np.ndarray, rows: np.ndarray, shape: RowShape
) -> dict[int, TierError]:
    found = tier.read_parts(request.slots[numbers], request.start - shape.lead, rows)
    errors = {number: error for number, error in zip(numbers.tolist(), found, strict=True) if error is not None}
    sums = row_checksums(rows[:, shape.lead : shape.lead + request.size])
    wrong = numbers[sums != request.checksums[request.pages[numbers], request.layer_index]]
    for number in wrong.tolist():
        errors.setdefault(number, WrongContent("part: a part of a page is not what left the device"))
    return errors


def _read_whole(
    tier: LowerTier, request: PartRequest, numbers: np.ndarray, rows: list[np.ndarray], shape: RowShape
) -> dict[int, TierError]:
    num_layers = request.checksums.shape[1]
    assert request.start == request.layer_index * request.size
    assert num_layers * request.size <= tier.page_bytes
    pages = _scratch(len(rows), tier.page_bytes)
    found = tier.read(tier.held(request.slots[numbers]), list(pages))
    errors = {}
    for number, result, page, row in zip(numbers.tolist(), found, pages, rows, strict=True):
        if isinstance(result, TierError):
            errors[number] = result
            continue
        index = request.pages[number]
        request.checksums[index] = row_checksums(page[: num_layers * request.size].reshape(num_layers, request.size))
        request.is_known[index] = True  # only now: others look at this first
        row[shape.lead : shape.lead + request.size] = page[request.start : request.start + request.size]
    return errors


_thread = local()


def _scratch(count: int, page_bytes: int) -> np.ndarray:
    """uint8 [count, page_bytes]; memory of this thread."""
    arena: HostArena | None = getattr(_thread, "pages", None)
    if arena is None or arena.block_stride != page_bytes or arena.num_blocks < count:
        arena = _thread.pages = HostArena(count, page_bytes)
    return arena.blocks[:count]


def _batches(numbers: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
