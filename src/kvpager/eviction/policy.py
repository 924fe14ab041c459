"""What is told to an eviction policy, and what is asked of it.

    enter --> (live) --release--> (cached) --offer--> (evictable) --> leave
                 ^                   ^                   |   |
                 |                   +----- withdraw ----+   |
                 +------------------ hit --------------------+

A policy orders the *evictable* blocks only: cached, not pinned, and with nothing below them in the prefix tree. So it
can't drop a live page, a prefix never loses its middle whatever the policy says, and every victim can go at once. When
a page's last child goes, the page is offered, and counts from its own last use. The slots of lower tiers are told and
asked alike; "block" means those too.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np

DEFAULT_PRIORITY = 50


class StopReason(IntEnum):
    """Why a request ended, as far as its client says: a tool's answer comes sooner than a human's."""

    UNKNOWN = 0
    TOOL_CALL = 1
    END_OF_TURN = 2


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of a request when it lets go of its pages.

    ``output_tokens``: those it generated. ``matched``: the share of its prompt that was found, 0 to 1.
    ``partial_tail``: the first block of the batch is a page that was not full. ``priority``: 0 (goes first) to 100.
    ``tenant``: who pays for the pages.
    """

    output_tokens: int = 0
    matched: float = 0.0
    stop: StopReason = StopReason.UNKNOWN
    partial_tail: bool = False
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""


NO_USE = Use()


@dataclass(frozen=True, slots=True)
class History:
    """What goes along with a page that moves to another tier, so that it does not start anew there.

    ``last_used``: seconds by the clock of the policies. ``uses``: by requests, so far. ``kind``: the policy's own class
    of it.
    """

    last_used: float
    uses: int
    kind: int


class EvictionPolicy(Protocol):
    """Batches are arrays of distinct block ids. What a policy remembers is bounded by a multiple of their number."""

    name: str
    uses_keys: bool  # else ``enter`` is given none

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        """New content became findable in these blocks. ``keys``: uint64, the same whenever the content is the same."""
        ...

    def hit(self, blocks: np.ndarray) -> None:
        """A request found these, cached or live: they are used again, and not evictable until they are offered."""
        ...

    def release(self, blocks: np.ndarray, use: Use) -> None:
        """The last request that used these let go of them, its last page first."""
        ...

    def offer(self, blocks: np.ndarray) -> None:
        """These may go from now on. Offering again changes nothing."""
        ...

    def withdraw(self, blocks: np.ndarray) -> None:
        """These may not go for now, offered or not; their rank and history stay."""
        ...

    def victim(self) -> int | None:
        """The offered block that should go first; the same until something changes. None: nothing is offered."""
        ...

    def leave(self, blocks: np.ndarray) -> None:
        """The content of these is gone. At most a ghost of it is remembered."""
        ...

    def resize(self, num_blocks: int) -> None:
        """The pool grew or shrank; blocks above a smaller size hold nothing."""
        ...

    def move(self, source: int, target: int) -> None:
        """Block ``source`` is called ``target`` from now on and keeps its rank and history."""
        ...

    def check(self, offered: np.ndarray) -> None:
        """Raises InvariantError unless exactly the blocks ``offered`` are offered."""
        ...


@runtime_checkable
class JudgingPolicy(EvictionPolicy, Protocol):
    """A policy that can say what a page is worth, in a number that means the same on every tier."""

    def below(self, num_blocks: int) -> "JudgingPolicy":
        """A policy for a tier below, over as many slots, which judges as this one does and has learned."""
        ...

    def history(self, block: int) -> History:
        """What is known of the page in ``block``."""
        ...

    def take_over(self, block: int, history: History) -> None:
        """The page in ``block``, which has entered, has this history; in place of ``release``."""
        ...

    def worth(self, block: int) -> float:
        """Expected reuse of the page in ``block`` per second of keeping it, now."""
        ...

    def worth_of(self, history: History) -> float:
        """``worth`` of a page with this history."""
        ...
