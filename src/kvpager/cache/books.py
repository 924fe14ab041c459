"""The columns of a cache's rows and blocks, bound to the native kernels that work on them: a plain step is opened and
closed, and a plain sequence ended, in one call each. What is plain, and what not, they say themselves; whatever is not
is done in Python, which does the same (cache/steps.py, memory/block_pool.py).
"""

from typing import Any

from kvpager import native
from kvpager.cache.sequence_rows import SequenceRows
from kvpager.memory.block_pool import BlockPool
from kvpager.prefix.index import PrefixIndex


class Books:
    """Of one cache."""

    def __init__(self, rows: SequenceRows, pool: BlockPool, index: PrefixIndex, page_size: int) -> None:
        self._rows = rows
        self._pool = pool
        self._index = index
        self._page_size = page_size
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
        if not hasattr(getattr(module, "Books", None), "map_free"):  # built from older sources
            self._bound = None
            return None
        rows = self._rows
        self._bound = module.Books(self._page_size)
        self._bound.bind_rows(rows.numbers, rows.is_alive, rows.is_special, rows.tail)
        self._bound.bind_blocks(*self._pool.columns())
        self._bound.bind_pages(*self._index.columns())
        return self._bound
