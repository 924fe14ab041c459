"""What a policy remembers of pages that are gone: a value per content key, the oldest forgotten first."""

from collections import OrderedDict


class Ghosts:
    """At most ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._value_of: OrderedDict[int, int] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._value_of)

    def __contains__(self, key: int) -> bool:
        return key in self._value_of

    def add(self, key: int, value: int = 0) -> None:
        """The youngest now, whether it was there or not."""
        self._value_of[key] = value
        self._value_of.move_to_end(key)
        if len(self._value_of) > self._limit:
            self._value_of.popitem(last=False)

    def take(self, key: int) -> int | None:
        """The value of one, which is forgotten. None: not there."""
        return self._value_of.pop(key, None)

    def drop_oldest(self) -> None:
        self._value_of.popitem(last=False)

    def resize(self, limit: int) -> None:
        self._limit = limit
        while len(self._value_of) > limit:
            self._value_of.popitem(last=False)
