"""Selective decode against exact decode of the same content: all pages resident, and seven eighths on the disk.

The queries of any two steps are alike (``SIMILARITY``), so that three quarters of a selection are those of the step
before, which is what SmolLM2 was measured to do over 3,072 tokens of text (0.75; 16 steps later 0.66). Queries that are
not alike at all, the worst case, are reported beside it, and so is the first step after all is written, when no page
has been selected yet. The larger pages are those with a target; both sizes are compared with exact attention over pages
of their own size.
"""

from functools import partial
from pathlib import Path

from kvpager.bench.demand_case import Long, LongCase
from kvpager.bench.demand_scale import DemandScale
from kvpager.bench.interleaved import Measure, Times, measure_in_turn
from kvpager.bench.paged_case import LLAMA
from kvpager.bench.report import Result, seconds_of
from kvpager.config.attend import Selective
from kvpager.config.tiers import DiskTier

RESIDENT_SPEEDUP = 8.0
DISK_SPEEDUP = 20.0
RESIDENT = 1 / 8
SIMILARITY = 0.96
_WARM_STEPS = 8


def resident(scale: DemandScale, folder: Path) -> list[Result]:
    results = []
    for page_size in (scale.page_size, scale.small_page_size):
        long = Long(LLAMA, scale.context, scale.layers, page_size, similarity=SIMILARITY)
        with LongCase(long) as exact, LongCase(long.attending(Selective(budget=scale.budget))) as selective:
            times, _ = _measured(exact, selective, scale)
        results += _figures("selective_128k_resident", page_size, times, RESIDENT_SPEEDUP, scale)
    return results


def disk(scale: DemandScale, folder: Path) -> list[Result]:
    results = []
    for page_size in (scale.page_size, scale.small_page_size):
        long = Long(LLAMA, scale.context, scale.selective_layers, page_size, RESIDENT, similarity=SIMILARITY)
        chosen = long.attending(Selective(budget=scale.budget))
        with (
            LongCase(long, _tier(folder, "exact", page_size, long)) as exact,
            LongCase(chosen, _tier(folder, "selective", page_size, long)) as selective,
        ):
            times, first = _measured(exact, selective, scale)
            results += _figures("selective_128k_disk", page_size, times, DISK_SPEEDUP, scale)
            selective.long = chosen.unlike()
            selective.decode()
            unlike = measure_in_turn([partial(seconds_of, selective.decode)], 0.0, 2 * scale.rounds)
            suffix = _suffix(page_size, scale)
            results += [
                Result(f"selective_128k_disk_first{suffix}", first * 1e3, "ms"),
                Result(f"selective_128k_disk_unlike_speedup{suffix}", times.median(0) / unlike.median(0), "ratio"),
            ]
    return results


def _tier(folder: Path, name: str, page_size: int, long: Long) -> DiskTier:
    return DiskTier(folder / f"{name}-{page_size}", 2 * long.num_bytes)


def _measured(exact: LongCase, selective: LongCase, scale: DemandScale) -> tuple[Times, float]:
    """Seconds of both, and of selective attention's first step."""
    exact.decode()
    first = seconds_of(selective.decode)
    for _ in range(_WARM_STEPS):
        selective.decode()
    calls: list[Measure] = [partial(seconds_of, exact.decode), partial(seconds_of, selective.decode)]
    return measure_in_turn(calls, scale.seconds, scale.rounds), first


def _figures(name: str, page_size: int, times: Times, speedup: float, scale: DemandScale) -> list[Result]:
    suffix = _suffix(page_size, scale)
    return [
        times.ratio(0, 1).result(f"{name}_speedup{suffix}", at_least=None if suffix else speedup),
        Result(f"{name}_exact_step{suffix}", times.median(0) * 1e3, "ms"),
        Result(f"{name}_step{suffix}", times.median(1) * 1e3, "ms"),
    ]


def _suffix(page_size: int, scale: DemandScale) -> str:
    """None of the size with a target."""
    return "" if page_size == scale.page_size else f"/{page_size}_tokens_a_page"
