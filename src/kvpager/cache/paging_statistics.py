"""What paging of running sequences shows of itself: plain numbers, read at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvpager.config import format_size
from kvpager.types import TierKind


@dataclass(frozen=True, slots=True)
class PagingStatistics:
    """``below``: pages that running sequences use where they lie, by tier, now; the others count since the cache was
    opened. ``out``: pages that lost their blocks to a tier; ``back``: that came up again; ``dropped``: given back for
    good, since attention needed them no more; ``lost``: that could not be read. Steps read ``read_bytes`` of pages
    below the device, and waited ``stalled_seconds`` for them. ``window_bytes``: memory they are read through."""

    below: Mapping[TierKind, int]
    out: int
    back: int
    dropped: int
    lost: int
    window_bytes: int
    read_bytes: int
    stalled_seconds: float

    def __str__(self) -> str:
        below = ", ".join(f"{count} {kind.name.lower()}" for kind, count in self.below.items()) or "none"
        return (
            f"paging   pages in use below the device: {below}; {self.out} went out, {self.back} came back, "
            f"{self.dropped} dropped, {self.lost} lost; {format_size(self.read_bytes)} read there, "
            f"{self.stalled_seconds:.2f} s waited"
        )
