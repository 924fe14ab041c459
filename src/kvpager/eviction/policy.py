"""What the cache tells an eviction policy, and what it asks of it.

A policy orders the CACHED blocks. It never sees used or moving blocks, so it can't drop a live page. The cache takes
its victims in order and skips a page that has children in the prefix index: leaves go first and a prefix never loses
its middle, whatever the policy says.
"""

from typing import Protocol

import numpy as np


class EvictionPolicy(Protocol):
    """All calls are batches of distinct block ids (int32) and cost O(batch), amortised."""

    name: str

    def add(self, blocks: np.ndarray) -> None:
        """These became cached. Within the batch the first is to go first (a sequence hands in its last page first)."""
        ...

    def remove(self, blocks: np.ndarray) -> None:
        """These are cached no longer: used again, held by a transfer, or evicted."""
        ...

    def victims(self, count: int) -> np.ndarray:
        """Up to ``count`` cached blocks, the first to go first. Changes nothing that a caller could notice."""
        ...

    def resize(self, num_blocks: int) -> None:
        """The pool grew or shrank; blocks above a smaller size are not cached."""
        ...

    def move(self, source: int, target: int) -> None:
        """Cached block ``source`` is called ``target`` from now on and keeps its rank."""
        ...

    def check(self, cached: np.ndarray) -> None:
        """Raises InvariantError unless the policy orders exactly the blocks ``cached``."""
        ...
