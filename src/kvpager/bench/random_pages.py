"""Random K and V in the pages of a sequence with token ids, where a model would be too slow: pages like others, which
are found by content, copied down with their checksums, and paged out. Knows no attention.
"""

import numpy as np
import torch

from kvpager.bench.report import SEED
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout

_SHIFTS = 4_194_301  # a prime: so many pages differ
_STRIDE = 7919


class RandomPages:
    """Normally distributed bf16 numbers; page ``number`` holds the same wherever and whenever it is written."""

    def __init__(self, layout: KVLayout) -> None:
        self._items = layout.block_stride // 2
        numbers = torch.randn(_SHIFTS + self._items, generator=torch.Generator().manual_seed(SEED))
        self._pattern = numbers.bfloat16().view(torch.uint8).numpy().view(np.uint16)

    def content(self, number: int) -> np.ndarray:
        """uint16 [items of a block]."""
        first = number * _STRIDE % _SHIFTS
        return self._pattern[first : first + self._items]

    def extend(self, cache: PagedCache, seq: Sequence, stop: int, pages_at_once: int, first_number: int = 0) -> None:
        """Writes positions up to ``stop``, a page border, in steps of some pages; page p is ``first_number + p``.

        REQUIRES: the sequence knows so many token ids, and ends at a page border.
        """
        arena, page_size = cache.arena, cache.layout.page_size
        assert isinstance(arena, HostArena)
        rows = arena.blocks.view(np.uint16)
        while seq.length < stop:
            first = seq.length // page_size
            count = min(pages_at_once, stop // page_size - first)
            with cache.step({seq: count * page_size}) as step:
                for tables in step.batch.tables:
                    for page, block in enumerate(tables[0][first : first + count].tolist(), first):
                        rows[block] = self.content(first_number + page)
