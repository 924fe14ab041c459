"""What policies share that keep their pages in two queues, each with an order of its own."""

from abc import ABC, abstractmethod

import numpy as np

from kvpager.eviction.ranked_leaves import RankedLeaves
from kvpager.eviction.ranked_policy import RankedPolicy


class QueuedPolicy(RankedPolicy, ABC):
    """Each page is in queue 0 or 1. ``_sizes`` counts all pages of a queue; ``_queues`` orders its evictable ones."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._queue_of = self._column(0)
        self._queues = (RankedLeaves(), RankedLeaves())
        self._sizes = [0, 0]

    def _put(self, block: int, queue: int) -> None:
        """A page that is new."""
        self._queue_of[block] = queue
        self._sizes[queue] += 1

    def _change_queue(self, block: int, queue: int, rank: int) -> None:
        """A page that is there goes to ``queue``, with a new rank."""
        before = self._queue_of[block]
        self._sizes[before] -= 1
        self._put(block, queue)
        self._rank[block] = rank
        if block in self._queues[before]:
            self._queues[before].withdraw(block)
            self._queues[queue].offer(block, rank)

    def hit(self, blocks: np.ndarray) -> None:
        self.withdraw(blocks)

    def offer(self, blocks: np.ndarray) -> None:
        queues, queue_of, rank = self._queues, self._queue_of, self._rank
        for block in blocks.tolist():
            queues[queue_of[block]].offer(block, rank[block])

    def withdraw(self, blocks: np.ndarray) -> None:
        found = blocks.tolist()
        first, second = self._queues
        first.withdraw_all(found)
        second.withdraw_all(found)

    def leave(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            queue = self._queue_of[block]
            self._sizes[queue] -= 1
            self._queues[queue].withdraw(block)

    @abstractmethod
    def victim(self) -> int | None:
        """As the protocol says: which queue goes first is what these policies differ in."""

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        for queue in self._queues:
            queue.move(source, target)

    def check(self, offered: np.ndarray) -> None:
        where = np.array([self._queue_of[block] for block in offered.tolist()], np.int8)
        for queue, leaves in enumerate(self._queues):
            leaves.check(offered[where == queue])
