"""Ranges of one piece of memory, given back in the order in which they were taken. Numbers only."""

from collections import deque


class Ring:
    """``size`` in bytes; a range is never cut, so it may leave the end of the memory unused."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: deque[tuple[int, int]] = deque()  # offset and size, the oldest first

    def take(self, size: int) -> int | None:
        """The offset of a new range; None: no room now. With nothing taken there is room for ``self.size``."""
        at = self._room(size)
        if at is not None:
            self._taken.append((at, size))
        return at

    def give_back(self) -> tuple[int, int]:
        """Offset and size of the oldest range, which is free now."""
        return self._taken.popleft()

    def _room(self, size: int) -> int | None:
        if not self._taken:
            return 0 if size <= self.size else None
        oldest, (newest, newest_size) = self._taken[0][0], self._taken[-1]
        end = newest + newest_size
        if newest < oldest:  # it began again at 0
            return end if end + size <= oldest else None
        if end + size <= self.size:
            return end
        return 0 if size <= oldest else None
