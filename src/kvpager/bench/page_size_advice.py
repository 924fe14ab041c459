"""The page size that follows from measurements, by one rule. Pure: measures nothing.

1. of the page sizes whose attention takes at most 3 % longer than the fastest, and whose waste is at most 2 %, the
   smallest: it hits most, and wastes least
2. where none is both, the one whose overhead and waste add up to least
"""

from collections.abc import Mapping
from dataclasses import dataclass

MOST_OVERHEAD = 0.03
MOST_WASTE = 0.02


@dataclass(frozen=True, slots=True)
class Advice:
    """``is_both``: the page size is within both limits."""

    page_size: int
    is_both: bool


def advise(over_best: Mapping[int, float], waste: Mapping[int, float]) -> Advice:
    """By page size: time over that of the fastest one, and the share of slots that hold nothing."""
    within = [size for size in over_best if over_best[size] <= 1 + MOST_OVERHEAD and waste[size] <= MOST_WASTE]
    if within:
        return Advice(min(within), True)
    return Advice(min(over_best, key=lambda size: (over_best[size] - 1 + waste[size], size)), False)
