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

from array import array

import numpy as np

from kvpager.errors import InvariantError
from kvpager.memory.page_table import UNMAPPED, PageTable

NO_ROW = -1  # of a freed sequence
_STALE = -1  # changes of columns that were laid out anew: so native kernels see that they hold the old ones
_NUM_COLUMNS = 5  # of one number a row that begin at 0; the first pages of the groups follow


class SequenceRows:
    def __init__(self, num_groups: int, capacity: int = 64) -> None:
        self._lay_out(np.zeros((_NUM_COLUMNS + num_groups, capacity), np.int64))
        self.is_alive = np.zeros(capacity, np.bool_)
        self.is_special = np.zeros(capacity, np.bool_)
        self.tail = np.zeros((num_groups, capacity), np.int32)
        self.changes = array("q", [0])  # how often a row was taken or left: until it changes, sequences keep theirs
        self._knows_special = False
        self.free = list(range(capacity - 1, -1, -1))
        self._num_groups = num_groups
        self.kept_tables: list[tuple[PageTable, ...] | None] = [None] * capacity  # of a free row: its last ones, empty

    def _lay_out(self, numbers: np.ndarray) -> None:
        """``numbers``: the columns that begin at 0, one below the other."""
        self.numbers = numbers
        self.committed, self.reserved, self.published, self.publish_until, self.open_steps = numbers[:_NUM_COLUMNS]
        self.first_page = numbers[_NUM_COLUMNS:]

    def columns(self) -> tuple[object, ...]:
        """What the native kernels work on, in their order."""
        changes = np.frombuffer(self.changes, np.int64)
        return self.numbers, self.is_alive, self.is_special, self.tail, self.kept_tables, self.free, changes

    def take(self) -> int:
        """A zeroed row, as all free ones are."""
        if not self.free:
            self._grow()
        row = self.free.pop()
        self.changes[0] += 1
        self.is_alive[row] = True
        return row

    def leave(self, row: int) -> None:
        """Its sequence is freed; whoever ends its last step gives the row back."""
        self.is_alive[row] = False
        self.changes[0] += 1

    def tables_for(self, row: int, page_size: int, num_pages: int) -> tuple[PageTable, ...]:
        """Empty tables with room for so many pages: those that the row has kept of its last sequence, or new ones."""
        kept = self.kept_tables[row]
        if kept is not None:
            self.kept_tables[row] = None
            if len(kept[0].entries) >= num_pages:
                return kept
        if self._num_groups == 1:
            return (PageTable(page_size, num_pages),)
        return tuple([PageTable(page_size, num_pages) for _ in range(self._num_groups)])

    def mark_special(self, row: int) -> None:
        self.is_special[row] = self._knows_special = True

    def has_special(self, rows: np.ndarray) -> bool:
        """Whether one of ``rows`` is special. Costs nothing where none ever was."""
        return self._knows_special and bool(self.is_special[rows].any())

    def give_back(self, row: int) -> None:
        self.numbers[:, row] = 0
        self.is_special[row] = False
        self.tail[:, row] = 0  # a row that nobody owns must not name a block: the pool may shrink below it
        self.free.append(row)

    def copy(self, source: int, target: int) -> None:
        """Everything but the open steps."""
        for column in (self.committed, self.reserved, self.published, self.publish_until, self.is_special):
            column[target] = column[source]
        self.tail[:, target] = self.tail[:, source]
        self.first_page[:, target] = self.first_page[:, source]

    def check(self) -> None:
        """Raises InvariantError unless the tables that rows have kept are empty: nothing is left of whose they were."""
        for table in (table for kept in self.kept_tables for table in kept or ()):
            if len(table) or (table.entries != UNMAPPED).any():
                raise InvariantError("a table that a row has kept names blocks")

    def _grow(self) -> None:
        old, stale = len(self.committed), self.changes
        self.changes, stale[0] = stale[:], _STALE
        self._lay_out(np.concatenate([self.numbers, np.zeros_like(self.numbers)], axis=1))
        for name in ("is_alive", "is_special"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self.tail = np.concatenate([self.tail, np.zeros_like(self.tail)], axis=1)
        self.kept_tables += [None] * old
        self.free.extend(range(2 * old - 1, old - 1, -1))
