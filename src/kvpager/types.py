"""The words of the house as types. No logic, no state, no imports of ours."""

from collections.abc import Callable
from enum import IntEnum
from typing import NewType

BlockId = NewType("BlockId", int)  # index of a block in the device pool, 0 <= id < num_blocks
PageIndex = NewType("PageIndex", int)  # index of a page in a sequence: token position // page_size
NodeId = NewType("NodeId", int)  # index of a node of the prefix index
ContentKey = NewType("ContentKey", bytes)  # 32 bytes of SHA-256: what a published page holds, and in which scope

Clock = Callable[[], float]  # seconds, monotonic; injected, so that the bookkeeping never reads a clock of its own


class TierKind(IntEnum):
    """Where a page lives, fastest first. ``NONE``: the page has no storage yet."""

    NONE = 0
    DEVICE = 1
    HOST = 2
    DISK = 3
    REMOTE = 4


class FaultKind(IntEnum):
    """Why touching a page needed work.

    DEMAND: a page touched for the first time took a fresh block. MINOR: the content was already on the device and
    was mapped. MAJOR: the content came up from a lower tier. COPY_ON_WRITE: a shared or published page was written,
    so the writer got a copy of its own.
    """

    DEMAND = 0
    MINOR = 1
    MAJOR = 2
    COPY_ON_WRITE = 3
