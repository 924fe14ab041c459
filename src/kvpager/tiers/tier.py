"""What every level of storage offers. Knows no sequences and no policy.

Lower tiers are found by content key: full pages are immutable, so a copy under a key is right for ever. The device
tier is found by block id; its bytes are the arena.
"""

from dataclasses import dataclass
from typing import Protocol

from kvpager.types import ContentKey, TierKind


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Bytes a tier may hold and holds, and its blocks by state; free + used + cached + moving = blocks (I1)."""

    kind: TierKind
    capacity_bytes: int
    used_bytes: int
    blocks: int
    free: int
    used: int
    cached: int
    moving: int


class Tier(Protocol):
    """A level of storage that counts what it holds."""

    kind: TierKind

    def usage(self) -> TierUsage: ...

    def check(self) -> None:
        """Raises InvariantError if what is counted is not what is held."""
        ...


class LowerTier(Tier, Protocol):
    """Storage below the device. A failed store is a page that is not there; a failed load is a miss."""

    def contains(self, key: ContentKey) -> bool:
        """Whether the page was wholly stored. Does not touch the bytes."""
        ...

    def store(self, key: ContentKey, page: memoryview) -> None:
        """Keeps a copy of one page. Raises TierError and keeps nothing of it if it can't."""
        ...

    def load(self, key: ContentKey, into: memoryview) -> None:
        """Fills ``into`` with the page stored under ``key``. Raises TierError if it is gone or its checksum fails."""
        ...
