"""What a policy remembers of pages that are gone: a number per content key, the oldest forgotten first."""

from collections import OrderedDict


class Ghosts(OrderedDict[int, int]):
    """At most ``limit`` of them; ``pop(key, None)`` takes one out."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def add(self, key: int, value: int = 0) -> None:
        """The youngest now, whether it was there or not."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._limit:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        self.popitem(last=False)

    def resize(self, limit: int) -> None:
        self._limit = limit
        while len(self) > limit:
            self.drop_oldest()
