"""Who has which part of the staging window's memory. Not safe for threads: whoever calls holds a lock.

    one stream          [ its own                ]
    two                 [ one's     ][ another's ]          a stream that found the whole free keeps the whole
    more, or that       [ one's                  ]  [ half as much again for each of the others, kept for the next ]

So no stream ever waits for memory of another, and a request that fits into a half always has room.
"""

import numpy as np

from kvpager.memory.arena import HostArena


class WindowMemory:
    """``half`` in bytes."""

    def __init__(self, half: int) -> None:
        self.half = half
        self._arena = HostArena(2, half)
        self._free = {0, 1}  # halves of the arena
        self._spare: list[np.ndarray] = []
        self.num_more = 0  # halves that were taken beside the arena

    def take(self, most: int) -> np.ndarray:
        """uint8: ``most`` halves (1 or 2) if they are free, else one."""
        whole = self._arena.blocks.reshape(-1)
        if most == 2 and len(self._free) == 2:
            self._free.clear()
            return whole
        if self._free:
            return self._arena.blocks[self._free.pop()]
        if self._spare:
            return self._spare.pop()
        self.num_more += 1
        return HostArena(1, self.half).blocks[0]

    def give_back(self, memory: np.ndarray) -> None:
        at = int(memory.ctypes.data) - self._arena.address
        if 0 <= at < 2 * self.half:
            first = at // self.half
            self._free.update(range(first, first + len(memory) // self.half))
        else:
            self._spare.append(memory)
