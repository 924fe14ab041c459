"""What it takes to touch pages that have no block, by where they lie; and what of it is bookkeeping.

    host, copy    the page gets a block: prepare, copy by a worker, complete
    disk, part    one layer's bytes of the page, through the window
    disk, page    the page gets a block: prepare, read by a worker, complete

One page at a time, nothing else under way. What a page read in place costs comes with the exact figures. Bookkeeping is
processor time of the thread that owns the books until a page has its block; copies are made by the same thread, and
their time is taken off. Its pages come some at a time, as a step brings them, and one by one beside it.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from kvpager.bench.demand_case import Long, LongCase
from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.inline_mover import InlineMover
from kvpager.bench.paged_case import LLAMA
from kvpager.bench.report import Result, seconds_of
from kvpager.config.tiers import DiskTier, HostTier
from kvpager.errors import InvariantError
from kvpager.tiers.staging import PartRequest
from kvpager.types import TierKind

BOOKKEEPING_US = 20.0
RESIDENT = 1 / 8
_AT_ONCE = 32  # pages
_LAYERS = 2
_PAGES = 1024


def faults(scale: DemandScale, folder: Path) -> list[Result]:
    long = Long(LLAMA, _PAGES * scale.small_page_size, _LAYERS, scale.small_page_size, RESIDENT)
    results = [*_bookkeeping(long, scale)]
    with LongCase(long, HostTier(pages=2 * _PAGES)) as case:
        results.append(_microseconds("major_fault_latency/host_copy", _pages_in(case, scale.faults)))
    with LongCase(long, DiskTier(folder / "faults", 2 * long.num_bytes)) as case:
        results.append(_microseconds("major_fault_latency/disk_part", _parts(case, scale.faults)))
        results.append(_microseconds("major_fault_latency/disk_page", _pages_in(case, scale.faults)))
    return results


def _bookkeeping(long: Long, scale: DemandScale) -> list[Result]:
    mover = InlineMover()
    with LongCase(long, HostTier(pages=2 * _PAGES), mover) as case:

        def cost(pages: np.ndarray) -> float:
            begin, copied = time.thread_time(), mover.seconds
            case.cache.paging.page_in(case.seq, 0, pages)
            came = time.thread_time() - begin - (mover.seconds - copied)
            _back_out(case, pages)
            return came / len(pages)

        several = [cost(pages) for pages in _groups(case, scale.faults, _AT_ONCE)]
        single = [cost(pages) for pages in _groups(case, scale.faults, 1)]
        return [
            _microseconds("major_fault_bookkeeping_us", several, at_most=BOOKKEEPING_US),
            _microseconds("major_fault_bookkeeping_us/one_by_one", single),
        ]


def _pages_in(case: LongCase, count: int) -> list[float]:
    found = []
    for pages in _groups(case, count, 1):
        found.append(seconds_of(partial(case.cache.paging.page_in, case.seq, 0, pages)))
        _back_out(case, pages)
    return found


def _parts(case: LongCase, count: int) -> list[float]:
    rest, window = case.cache.paging.non_resident(case.seq, 0), case.cache.paging.window
    assert rest is not None
    assert window is not None

    def fetch(page: np.ndarray) -> Callable[[], None]:
        request = PartRequest(
            TierKind.DISK, rest.slot[page], 0, case.long.part_bytes, 0, rest.checksums, rest.is_known, page
        )

        def call() -> None:
            if errors := window.fetch(request).errors:
                raise InvariantError(f"a part can't be read; it was not timed: {errors[0]}")

        return call

    return [seconds_of(fetch(page)) for page in _groups(case, count, 1)]


def _back_out(case: LongCase, pages: np.ndarray) -> None:
    if case.cache.paging.page_out(case.seq, 0, pages) != len(pages):
        raise InvariantError("a page that came up did not go down again; it was not timed")


def _groups(case: LongCase, count: int, size: int) -> list[np.ndarray]:
    """``count`` non-resident pages, at most all of them, spread over the sequence in ascending groups of ``size``."""
    rest = case.cache.paging.non_resident(case.seq, 0)
    assert rest is not None
    found = np.flatnonzero(rest.tier)
    spread = found[np.linspace(0, len(found) - 1, min(count, len(found))).astype(np.int64)]
    return [spread[at : at + size] for at in range(0, len(spread) - size + 1, size)]


def _microseconds(name: str, seconds: list[float], at_most: float | None = None) -> Result:
    low, middle, high = statistics.quantiles([each * 1e6 for each in seconds], n=4, method="inclusive")
    return Result(name, middle, "us", at_most=at_most, spread=(low, high))
