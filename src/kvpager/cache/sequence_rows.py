"""The numbers of all sequences as columns, so that a step over a thousand of them is a few numpy operations.

A sequence owns one row while it lives, and until the last step that saw it has ended.

    committed   tokens whose K and V are written and readable
    reserved    committed + the tokens of open steps; pages up to here are mapped
    published   pages that are in the prefix index
    tail        [group] block of the page that holds position reserved-1, where that page is not full
    first_page  [group] pages before this one were given back because the window moved past them
    open_steps  steps that see the sequence and have not ended
    is_alive    false once freed
    is_special  has a resident limit, pages away from the device, or an attention of its own
"""

import numpy as np


class SequenceRows:
    def __init__(self, num_groups: int, capacity: int = 64) -> None:
        self.committed = np.zeros(capacity, np.int64)
        self.reserved = np.zeros(capacity, np.int64)
        self.published = np.zeros(capacity, np.int64)
        self.publish_until = np.zeros(capacity, np.int64)  # pages; 0 where nothing is to be published
        self.open_steps = np.zeros(capacity, np.int32)
        self.is_alive = np.zeros(capacity, np.bool_)
        self.is_special = np.zeros(capacity, np.bool_)
        self.tail = np.zeros((num_groups, capacity), np.int32)
        self.first_page = np.zeros((num_groups, capacity), np.int64)
        self._knows_special = False
        self._free = list(range(capacity - 1, -1, -1))

    def take(self) -> int:
        """A zeroed row."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        for column in (self.committed, self.reserved, self.published, self.publish_until, self.open_steps):
            column[row] = 0
        self.first_page[:, row] = 0
        self.is_alive[row] = True
        self.is_special[row] = False
        return row

    def mark_special(self, row: int) -> None:
        self.is_special[row] = self._knows_special = True

    def has_special(self, rows: np.ndarray) -> bool:
        """Whether one of ``rows`` is special. Costs nothing where none ever was."""
        return self._knows_special and bool(self.is_special[rows].any())

    def give_back(self, row: int) -> None:
        self.tail[:, row] = 0  # a row that nobody owns must not name a block: the pool may shrink below it
        self._free.append(row)

    def copy(self, source: int, target: int) -> None:
        """Everything but the open steps."""
        for column in (self.committed, self.reserved, self.published, self.publish_until, self.is_special):
            column[target] = column[source]
        self.tail[:, target] = self.tail[:, source]
        self.first_page[:, target] = self.first_page[:, source]

    def _grow(self) -> None:
        old = len(self.committed)
        for name in ("committed", "reserved", "published", "publish_until", "open_steps", "is_alive", "is_special"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        for name in ("tail", "first_page"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)], axis=1))
        self._free.extend(range(2 * old - 1, old - 1, -1))
