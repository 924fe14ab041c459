"""What happens to the pages of a choice that is stopped so that others can go on. Knows no request.

    its full pages can be found    a tier below the device    mode
    no                             either                     RECOMPUTE    all is computed again
    yes                            no                         KEEP         they stay on the device, cached, and are
                                                                           found again unless others took the blocks
    yes                            yes                        SWAP         the same, and where others took the blocks,
                                                                           they come up again from a tier that has them

What was found in the end, the statistics say by tier when the choice goes on.
"""

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence


class PreemptionMode(Enum):
    RECOMPUTE = "recompute"
    KEEP = "keep"
    SWAP = "swap"


def mode_of(cache: "PagedCache", sequence: "Sequence") -> PreemptionMode:
    """REQUIRES: it still has its pages."""
    if not cache.rows.published[sequence.row]:
        return PreemptionMode.RECOMPUTE
    return PreemptionMode.KEEP if cache.lower is None else PreemptionMode.SWAP
