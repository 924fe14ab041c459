"""Least recently used: the block whose content was let go longest ago goes first.

A log of batches, oldest first, and one stamp per block. An entry counts only while its stamp is still the block's, so
a block that is used again costs nothing to take out; old entries are dropped when they are met, and the log is
rewritten when more than half of it is old. Every call is a few numpy operations on the batch.
"""

from collections import deque

import numpy as np

from kvpager.errors import InvariantError

_ABSENT = -1
_SLACK = 1024  # entries the log may hold beyond twice the number of blocks


class LRU:
    name = "lru"

    def __init__(self, num_blocks: int) -> None:
        self._stamps = np.full(num_blocks, _ABSENT, np.int64)
        self._log: deque[tuple[np.ndarray, np.ndarray]] = deque()  # (blocks, stamps)
        self._logged = 0
        self._clock = 0

    def add(self, blocks: np.ndarray) -> None:
        stamps = np.arange(self._clock, self._clock + len(blocks))
        self._clock += len(blocks)
        blocks = blocks.astype(np.int64)  # a copy, and numpy indexes with int64 much faster
        self._stamps[blocks] = stamps
        self._log.append((blocks, stamps))
        self._logged += len(blocks)
        if self._logged > 2 * len(self._stamps) + _SLACK:
            self._compact()

    def remove(self, blocks: np.ndarray) -> None:
        self._stamps[blocks] = _ABSENT

    def victims(self, count: int) -> np.ndarray:
        found: list[np.ndarray] = []
        missing = count
        for blocks, stamps in self._pruned_log():
            alive = blocks[self._stamps[blocks] == stamps][:missing]
            found.append(alive)
            missing -= len(alive)
            if missing == 0:
                break
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def resize(self, num_blocks: int) -> None:
        self._compact()
        kept = self._stamps[:num_blocks]
        self._stamps = np.concatenate([kept, np.full(num_blocks - len(kept), _ABSENT, np.int64)])

    def move(self, source: int, target: int) -> None:
        self._stamps[target], self._stamps[source] = self._stamps[source], _ABSENT
        for blocks, stamps in self._log:
            blocks[(blocks == source) & (stamps == self._stamps[target])] = target

    def check(self, cached: np.ndarray) -> None:
        if not np.array_equal(np.flatnonzero(self._stamps != _ABSENT), np.sort(cached)):
            raise InvariantError("the LRU order does not hold exactly the cached blocks")
        if not np.array_equal(np.sort(self.victims(len(self._stamps))), np.sort(cached)):
            raise InvariantError("the LRU log lost a cached block")

    def _pruned_log(self) -> "deque[tuple[np.ndarray, np.ndarray]]":
        """The log without the batches at its head that hold nothing any more."""
        while self._log:
            blocks, stamps = self._log[0]
            if (self._stamps[blocks] == stamps).any():
                break
            self._log.popleft()
            self._logged -= len(blocks)
        return self._log

    def _compact(self) -> None:
        blocks = np.flatnonzero(self._stamps != _ABSENT).astype(np.int32)
        stamps = self._stamps[blocks]
        order = np.argsort(stamps)
        self._log = deque([(blocks[order], stamps[order])] if len(blocks) else [])
        self._logged = len(blocks)
