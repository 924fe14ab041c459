"""What migration shows of itself: plain numbers, read at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpager.types import TierKind


@dataclass(frozen=True, slots=True)
class MigrationStatistics:
    """``precision``: of pages below the device. ``moving_bytes``: under way now. ``refused``: demotions that found the
    queues or tiers full. ``lost``: pages the device dropped that no tier had or took. ``late``: loads that missed their
    deadline. Waits are of the bookkeeping thread: ``io_wait_seconds`` while there was work for it, ``idle_seconds``
    while there was none. ``not_worth_keeping``: pages the device dropped because no tier holds one that is worth less.
    ``demoted``: pages copied into a tier from above; ``promoted``: from a tier to the device; ``page_bytes`` each."""

    precision: str
    moving_bytes: int
    queued_jobs: int
    refused: int
    lost: int
    late: int
    io_wait_seconds: float
    idle_seconds: float
    not_worth_keeping: int = 0
    demoted: Mapping[TierKind, int] = field(default_factory=dict)
    promoted: Mapping[TierKind, int] = field(default_factory=dict)
    page_bytes: int = 0
