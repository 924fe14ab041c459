"""Pages of a running sequence that have no block: which tier holds each, and what is needed to read it there.

One table a sequence and layer group, in columns by page number, so that a step over a million tokens takes views and
never walks over pages. Changes only between the steps of its sequence. Moves no bytes and decides nothing.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.types import TierKind


@dataclass(slots=True)
class NonResidentPages:
    """Columns [pages]; ``tier`` is NONE where a page is resident, or not mapped at all."""

    tier: np.ndarray  # uint8, TierKind
    slot: np.ndarray  # int32, held slot of that tier
    address: np.ndarray  # int64 of the page's first byte, where a processor reads it in place; else 0
    checksums: np.ndarray  # uint64 [pages, layers of the group]: CRC-64 of each layer's part
    is_known: np.ndarray  # bool: whether the checksums are

    @classmethod
    def none(cls, num_layers: int) -> "NonResidentPages":
        return cls(
            np.zeros(0, np.uint8),
            np.zeros(0, np.int32),
            np.zeros(0, np.int64),
            np.zeros((0, num_layers), np.uint64),
            np.zeros(0, np.bool_),
        )

    def reach(self, pages: int) -> None:
        """Makes the columns at least ``pages`` long; views taken before stay what they are."""
        if pages > len(self.tier):
            added = max(pages, 2 * len(self.tier), 64) - len(self.tier)
            for name in ("tier", "slot", "address", "checksums", "is_known"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros((added, *column.shape[1:]), column.dtype)]))

    def put(
        self,
        pages: np.ndarray,
        tier: TierKind,
        slots: np.ndarray,
        addresses: np.ndarray | None,
        checksums: np.ndarray | None,
    ) -> None:
        """``pages`` lie in these slots. ``checksums`` [len(pages), layers]; None where nobody knows them yet."""
        self.tier[pages] = tier
        self.slot[pages] = slots
        self.address[pages] = 0 if addresses is None else addresses
        self.is_known[pages] = checksums is not None
        if checksums is not None:
            self.checksums[pages] = checksums

    def clear(self, pages: np.ndarray | slice) -> None:
        """``pages`` do not lie below the device any more."""
        self.tier[pages] = TierKind.NONE
        self.address[pages] = 0
        self.is_known[pages] = False

    def copy(self) -> "NonResidentPages":
        return NonResidentPages(
            self.tier.copy(), self.slot.copy(), self.address.copy(), self.checksums.copy(), self.is_known.copy()
        )

    @property
    def nbytes(self) -> int:
        columns = (self.tier, self.slot, self.address, self.checksums, self.is_known)
        return sum(column.nbytes for column in columns)
