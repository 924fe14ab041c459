"""LRU's hit ratio at capacities all over the range, from a sample of the pages, and how far that is from the truth."""

from dataclasses import dataclass

import numpy as np

from kvpager.simulator.miss_ratio_curve import curve_error, exact_curve, sampled_curve
from kvpager.simulator.trace import Trace

_LEAST_RATE, _LEAST_PAGES = 0.01, 32768  # of the sample, or all there are
_POINTS = 61
_SMALLEST = 1e-3  # of the distinct pages


@dataclass(frozen=True, slots=True)
class SampledLRU:
    """``hit_ratios[i]`` of tokens at ``capacities[i]`` blocks. ``rate``: the share of the pages that was looked at.
    Errors are absolute, against the exact curve, over capacities at equal steps."""

    capacities: tuple[int, ...]
    hit_ratios: tuple[float, ...]
    rate: float
    sampled_references: int
    mean_error: float
    largest_error: float


def sampled_lru(trace: Trace) -> SampledLRU:
    rate = min(1.0, max(_LEAST_RATE, _LEAST_PAGES / max(1, trace.num_blocks)))
    curve = sampled_curve(trace, rate)
    error = curve_error(curve, exact_curve(trace))
    shares = np.geomspace(_SMALLEST, 1.0, _POINTS)
    capacities = sorted({max(1, round(share * trace.num_blocks)) for share in shares.tolist()})
    ratios = tuple(curve.token_ratio(capacity) for capacity in capacities)
    return SampledLRU(tuple(capacities), ratios, curve.rate, curve.sampled_references, error.mean, error.largest)
