"""S3-FIFO: a small queue filters what is used once; a large one gives what was used a second chance.

Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction" (2023): a page enters the small
queue, or the main one if it left the small one not long ago. A counter up to 3 tells how often it was used. While the
small queue holds its tenth, its oldest page is the victim unless it was used more than once: then it moves to the main
queue. There, the oldest page is the victim unless it was used: then it starts anew, with one use less.

Leaf rule: the oldest leaf stands for the oldest page; sizes count all pages. Pages move when a victim is asked for.
"""

import numpy as np

from kvpager.eviction.ghosts import Ghosts
from kvpager.eviction.queued_policy import QueuedPolicy

SMALL_SHARE = 0.1
_MAX_USES = 3
_SMALL, _MAIN = 0, 1


class S3FIFO(QueuedPolicy):
    name = "s3fifo"
    uses_keys = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._key = self._column(0)
        self._uses = self._column(0)
        self._ghosts = Ghosts(0)
        self._chosen: int | None = None  # the victim, until something changes
        self._set_sizes()

    def _set_sizes(self) -> None:
        self._small_size = max(1, round(SMALL_SHARE * self._num_blocks))
        self._main_size = max(0, self._num_blocks - self._small_size)
        self._ghosts.resize(self._main_size)

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        self._chosen = None
        for block, key in zip(blocks.tolist(), keys.tolist(), strict=True):
            self._key[block] = key
            self._uses[block] = 0
            self._put(block, _SMALL if self._ghosts.pop(key, None) is None else _MAIN)
            self._rank[block] = self._tick()

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        uses = self._uses
        for block in blocks.tolist():
            if uses[block] < _MAX_USES:
                uses[block] += 1

    def offer(self, blocks: np.ndarray) -> None:
        self._chosen = None
        super().offer(blocks)

    def withdraw(self, blocks: np.ndarray) -> None:
        self._chosen = None
        super().withdraw(blocks)

    def leave(self, blocks: np.ndarray) -> None:
        self._chosen = None
        super().leave(blocks)
        for block in blocks.tolist():
            if self._queue_of[block] == _SMALL:
                self._ghosts.add(self._key[block])

    def resize(self, num_blocks: int) -> None:
        self._chosen = None
        super().resize(num_blocks)
        self._set_sizes()

    def move(self, source: int, target: int) -> None:
        self._chosen = None
        super().move(source, target)

    def victim(self) -> int | None:
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen

    def _choose(self) -> int | None:
        if self._sizes[_SMALL] < self._small_size and (block := self._of_main()) is not None:
            return block
        block = self._of_small()
        return self._of_main() if block is None else block  # where the small queue may have moved all it had

    def _of_small(self) -> int | None:
        while (block := self._queues[_SMALL].lowest()) is not None:
            if self._uses[block] <= 1:
                return block
            self._uses[block] = 0
            self._change_queue(block, _MAIN, self._tick())
            if self._sizes[_MAIN] > self._main_size:
                return self._of_main()
        return None

    def _of_main(self) -> int | None:
        while (block := self._queues[_MAIN].lowest()) is not None:
            if self._uses[block] == 0:
                return block
            self._uses[block] -= 1
            self._rank[block] = self._tick()
            self._queues[_MAIN].offer(block, self._rank[block])
        return None

    def _tick(self) -> int:
        self._now += 1
        return self._now
