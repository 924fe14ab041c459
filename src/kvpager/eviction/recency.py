"""Some of the blocks of a policy by their last use, where no order but that is asked for.

A doubly linked list through block numbers, in columns made once: a dictionary that is filled and emptied all the time
is laid out anew now and then, and one call pays for it.
"""

from collections.abc import Iterable

_END = -1  # before the least recent and after the most recent: in the columns the last place, whatever their size


class Recency:
    """Empty at first. A block that is not here is its own neighbour."""

    def __init__(self, num_blocks: int) -> None:
        self._before, self._after = ([*range(num_blocks), _END] for _ in range(2))
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, block: int) -> bool:
        return self._before[block] != block

    def use(self, blocks: list[int]) -> None:
        """These are the most recent now, the last of them above all, whether they were here or not."""
        self.take_out(blocks)
        self.append(blocks)

    def append(self, blocks: list[int]) -> None:
        """``use`` of blocks that are not here."""
        before, after = self._before, self._after
        newest = before[_END]
        for block in blocks:
            after[newest] = block
            before[block] = newest
            newest = block
        after[newest] = _END
        before[_END] = newest
        self._size += len(blocks)

    def take_out(self, blocks: Iterable[int]) -> None:
        """Those that are here."""
        before, after = self._before, self._after
        for block in blocks:
            older = before[block]
            if older != block:
                newer = after[block]
                after[older], before[newer] = newer, older
                before[block] = after[block] = block
                self._size -= 1

    def pop_oldest(self, count: int) -> list[int]:
        """So many are here no more, returned with the least recent in front."""
        before, after = self._before, self._after
        popped = []
        oldest = after[_END]
        for _ in range(count):
            popped.append(oldest)
            newer = after[oldest]
            before[oldest] = after[oldest] = oldest
            oldest = newer
        after[_END], before[oldest] = oldest, _END
        self._size -= count
        return popped

    def move(self, source: int, target: int) -> None:
        """The block is called ``target`` from now on, if it is here."""
        if source in self and source != target:
            older, newer = self._before[source], self._after[source]
            self._before[target], self._after[target] = older, newer
            self._after[older] = self._before[newer] = target
            self._before[source] = self._after[source] = source

    def resize(self, num_blocks: int) -> None:
        """REQUIRES: none is here that there is no more."""
        for column in (self._before, self._after):
            end = column.pop()
            del column[num_blocks:]
            column.extend(range(len(column), num_blocks))
            column.append(end)
