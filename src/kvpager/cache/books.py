"""The columns of a cache's rows and blocks, bound to the native kernels that work on them: a plain step is opened and
closed, and a plain sequence ended, in one call each. What is plain, and what not, they say themselves; whatever is not
is done in Python, which does the same (cache/steps.py, cache/ending.py, memory/block_pool.py).
"""

from collections.abc import Callable
from typing import Any

from kvpager import native
from kvpager.cache.evictable import Evictable
from kvpager.cache.sequence import Sequence
from kvpager.cache.sequence_rows import SequenceRows
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.page_table import PageTable
from kvpager.prefix.index import PrefixIndex

End = Callable[[Sequence, Evictable, dict[int, Sequence]], bool]


def _never(seq: Sequence, evictable: Evictable, sequences: dict[int, Sequence]) -> bool:
    return False


class Books:
    """Of one cache. ``can_end``: whether its sequences can be plain when they end; asked whenever columns are bound.

    ``end(seq, evictable, sequences)``: the native end of a sequence of the cache; False, with nothing changed, where it
    is not plain, or where ``native()`` has to bind columns first that were laid out anew.
    """

    def __init__(
        self,
        rows: SequenceRows,
        pool: BlockPool,
        index: PrefixIndex,
        evictable: Evictable,
        page_size: int,
        can_end: bool,
    ) -> None:
        self._rows = rows
        self._pool = pool
        self._index = index
        self._evictable = evictable
        self._page_size = page_size
        self.can_end = can_end
        self.end: End = _never
        self._bound: Any = None  # what the module has made of them
        self._numbers: object = None  # columns as they were bound: they are laid out anew when there are more
        self._states: object = None

    def native(self) -> Any:
        """The kernels over the columns as they are now; None where there are none."""
        if native.is_off:
            return None
        if self._numbers is self._rows.numbers and self._states is self._pool._states:
            return self._bound
        return self._bind(native.module())

    def _bind(self, module: Any) -> Any:
        self._numbers, self._states = self._rows.numbers, self._pool._states
        if not hasattr(getattr(module, "Books", None), "bind_lru"):  # built from older sources
            self._bound = None
            return None
        entries = PageTable(self._page_size).entries
        self._bound = module.Books(self._page_size, Sequence, PageTable, Evictable, entries)
        self._bound.bind_rows(*self._rows.columns())
        self._bound.bind_blocks(*self._pool.columns())
        self._bound.bind_pages(*self._index.columns())
        if self.can_end:
            self.end = self._bound.end
            if self._evictable.lru is not None:
                self._bound.bind_lru(self._evictable.lru)
        return self._bound
