"""Pages of a running sequence that have no block: which tier holds each, and what is needed to read it there.

One table a sequence and layer group, in columns by page number, so that a step over a million tokens takes views and
never walks over pages. Changes only between the steps of its sequence. Moves no bytes and decides nothing.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class NonResidentPages:
    """Columns [pages]; ``tier`` is NONE where a page is resident, or not mapped at all."""

    tier: np.ndarray  # uint8, TierKind
    slot: np.ndarray  # int32, held slot of that tier
    address: np.ndarray  # int64 of the page's first byte, where a processor reads it in place; else 0
    checksums: np.ndarray  # uint64 [pages, layers of the group]: CRC-64 of each layer's part
    is_known: np.ndarray  # bool: whether the checksums are
