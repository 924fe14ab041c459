"""Time of decode attention in one layer by page size, on blocks that really exist and lie in random order.

Sequences of one context, as many as fill ``tokens``; the native kernels of this machine. Page sizes run in turn, so a
slow phase meets all of them. Every result is compared with the fp32 reference before anything is timed.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from kvpager.bench.interleaved import Ratio, Times, run_in_turn
from kvpager.bench.page_size_models import SizedModel
from kvpager.bench.paged_case import PagedCase
from kvpager.bench.scale import Load


@dataclass(frozen=True, slots=True)
class AttentionTimes:
    """Of one model and context. ``over_best[page_size]``: time over that of the fastest page size."""

    model: str
    context: int
    milliseconds: dict[int, float]
    over_best: dict[int, Ratio]


def measure(
    model: SizedModel, context: int, page_sizes: tuple[int, ...], tokens: int, seconds: float, cold_bytes: int
) -> AttentionTimes:
    """``seconds`` for all page sizes together. ``cold_bytes``: more than stays in the caches."""
    load = Load(max(1, tokens // context), context)
    with ExitStack() as stack:
        cases = [
            stack.enter_context(PagedCase(model.shape, load, cold_bytes=cold_bytes, page_size=page_size))
            for page_size in page_sizes
        ]
        for case in cases:
            case.check()
        times = run_in_turn([case.run for case in cases], seconds)
    return _compared(model, context, page_sizes, times)


def _compared(model: SizedModel, context: int, page_sizes: tuple[int, ...], times: Times) -> AttentionTimes:
    best = times.fastest(range(len(page_sizes)))
    return AttentionTimes(
        model.name,
        context,
        {page_size: 1e3 * times.median(at) for at, page_size in enumerate(page_sizes)},
        {page_size: times.ratio(at, best) for at, page_size in enumerate(page_sizes)},
    )
