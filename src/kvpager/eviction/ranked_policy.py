"""What policies share: columns of numbers, one per block, and the evictable blocks by their rank.

A policy that is an order of all pages says the rank of a block when it is used; `QueuedPolicy` is for those that keep
their pages in several queues.
"""

from collections.abc import MutableSequence
from typing import TypeVar

import numpy as np

from kvpager.eviction.policy import Use
from kvpager.eviction.ranked_leaves import RankedLeaves

Value = TypeVar("Value")
TIME_BITS = 48  # of a rank: enough to count uses for ever


class RankedPolicy:
    """The evictable block of the lowest ``_rank`` goes first. Columns are lists, or arrays: most is asked of one block.

    Where a rank has two parts it is ``(first << TIME_BITS) + time``.
    """

    name: str
    uses_keys = False

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._columns: list[tuple[MutableSequence, object]] = []  # type: ignore[type-arg]
        self._rank: MutableSequence[int] = self._column(0)
        self._leaves = RankedLeaves()
        self._now = 0  # counts uses of blocks

    def _column(self, empty: Value) -> list[Value]:
        """One value per block, which grows, shrinks and moves with the blocks."""
        column = [empty] * self._num_blocks
        self._columns.append((column, empty))
        return column

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        pass

    def hit(self, blocks: np.ndarray) -> None:
        self._leaves.withdraw_all(blocks.tolist())

    def release(self, blocks: np.ndarray, use: Use) -> None:
        pass

    def offer(self, blocks: np.ndarray) -> None:
        self._leaves.offer_all(blocks.tolist(), self._rank)

    def withdraw(self, blocks: np.ndarray) -> None:
        self._leaves.withdraw_all(blocks.tolist())

    def victim(self) -> int | None:
        return self._leaves.lowest()

    def leave(self, blocks: np.ndarray) -> None:
        self._leaves.withdraw_all(blocks.tolist())

    def resize(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        for column, empty in self._columns:
            del column[num_blocks:]
            column.extend([empty] * (num_blocks - len(column)))

    def move(self, source: int, target: int) -> None:
        for column, _ in self._columns:
            column[target] = column[source]
        self._leaves.move(source, target)

    def check(self, offered: np.ndarray) -> None:
        self._leaves.check(offered)
