"""The words of the house as types. No logic, no state, no imports of ours."""

from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import NewType

BlockId = NewType("BlockId", int)  # index of a block in the device pool, 0 <= id < num_blocks
PageIndex = NewType("PageIndex", int)  # index of a page in a sequence: token position // page_size
NodeId = NewType("NodeId", int)  # index of a node of the prefix index
PageName = NewType("PageName", tuple[bytes, ...])  # of a page nobody has yet: two that want the same one see it
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


class PageReason(StrEnum):
    """Why a page can be found somewhere from now on, or can't any more."""

    PUBLISHED = "published"  # it was computed here, and is full
    ARRIVED = "arrived"  # it came to the device from a tier below, or from a file
    COPIED = "copied"  # a tier below has a copy from now on
    PRIVATE = "private"  # the same, for one running sequence alone: nobody else can find it
    LEARNED = "learned"  # a store that others fill was asked, and has it
    FOUND = "found"  # it was there before anybody listened
    EVICTED = "evicted"  # the eviction policy chose it, to make room
    PAGED_OUT = "paged out"  # its sequence goes on with the copy below
    CLEARED = "cleared"  # all of a tier was dropped
    FORGOTTEN = "forgotten"  # its time, quota or only user ended, or it came up from an exclusive tier
    FAILED = "failed"  # it could not be read
    WRONG = "wrong content"  # what was read was not what had been stored
    EXPIRED = "expired"  # nobody has confirmed for long that a store of others still has it
    LOST_COUNT = "lost count"  # not gone: events were dropped, and what is there is told anew
