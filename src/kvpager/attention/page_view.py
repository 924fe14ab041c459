"""Where the pages of one sequence lie in one layer group, as a step found them: blocks, tiers, or nowhere any more.

    page       0        1        2        3        4
            | block  | gone   | host   | disk   | block  |
               |                 |        |        |
            read in place    in place  through   in place          (host memory on a CPU device)
                                       the window

Attention to anything but a plain page list goes through this: streamed, selective, and after in-request eviction.
"""

from dataclasses import dataclass

import numpy as np

from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.step import StepBatch, Touched
from kvpager.memory.arena import Arena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.staging import PartRequest, Window
from kvpager.types import TierKind


@dataclass(frozen=True, slots=True)
class PageView:
    """Of sequence ``s`` of a step in layer ``group``: queries at positions ``start`` .. ``start + queries``.

    ``blocks`` int32 [pages]: as in StepBatch.tables, cut to the pages that hold tokens. ``rest``: None where every page
    is resident or gone. ``row``: the sequence's, as errors name it.
    """

    layout: KVLayout
    arena: Arena
    s: int
    group: int
    start: int
    queries: int
    blocks: np.ndarray
    rest: NonResidentPages | None
    window: Window | None
    touched: Touched | None
    row: int = 0

    @classmethod
    def of(cls, batch: StepBatch, arena: Arena, group: int, s: int) -> "PageView":
        start, queries = int(batch.starts[s]), int(batch.query_lengths[s])
        blocks = batch.tables[group][s][: batch.layout.num_pages(start + queries)]
        rest = batch.non_resident.get((group, s))
        row = int(batch.rows[s])
        return cls(batch.layout, arena, s, group, start, queries, blocks, rest, batch.window, batch.touched, row)

    @property
    def num_tokens(self) -> int:
        return self.start + self.queries

    def present(self) -> np.ndarray:
        """bool [pages]: not gone for good."""
        here = self.blocks >= 0
        return here if self.rest is None else here | (self.rest.tier[: len(here)] != TierKind.NONE)

    def seen(self) -> np.ndarray:
        """int64, ascending: the pages that some query sees and that are not gone for good."""
        first = self._first_seen()
        return first + np.flatnonzero(self.present()[first:])

    def is_dense(self, pages: np.ndarray) -> bool:
        """Whether ``pages``, as ``seen`` has them, are all that the queries see."""
        return len(pages) > 0 and len(pages) == len(self.blocks) - self._first_seen()

    def _first_seen(self) -> int:
        return first_visible_page(self.start, self.layout.groups[self.group].window, self.layout.page_size)

    def part(self, layer: int) -> tuple[int, int]:
        """Start and size, in bytes, of what ``layer`` has of a page. REQUIRES: not a quantized layout."""
        place, layout = self.layout.places[layer], self.layout
        shape = layout.groups[place.group]
        size = shape.kv_heads * 2 * layout.page_size * shape.head_dim * layout.item_bytes
        return place.index * size, size

    def page_addresses(self, pages: np.ndarray) -> np.ndarray:
        """int64 byte address of the first byte of each of ``pages`` that a processor reads in place; 0 of others."""
        blocks = self.blocks[pages].astype(np.int64)
        elsewhere = 0 if self.rest is None else self.rest.address[pages]
        return np.where(blocks >= 0, self.arena.address + blocks * self.arena.block_stride, elsewhere)

    def addresses(self, layer: int, pages: np.ndarray) -> np.ndarray:
        """The same of ``layer``'s part of each page."""
        found = self.page_addresses(pages)
        return np.where(found != 0, found + self.part(layer)[0], 0)

    def to_read(self, pages: np.ndarray) -> list[tuple[TierKind, np.ndarray]]:
        """Of ``pages``, those that have to be read through the window, tier by tier."""
        rest = self.rest
        if rest is None:
            return []
        far = pages[(self.blocks[pages] < 0) & (rest.address[pages] == 0) & (rest.tier[pages] != TierKind.NONE)]
        return [(TierKind(tier), far[rest.tier[far] == tier]) for tier in np.unique(rest.tier[far]).tolist()]

    def request(self, layer: int, tier: TierKind, pages: np.ndarray) -> PartRequest:
        """What reads ``layer``'s parts of ``pages``, all of one tier. REQUIRES: a sequence with non-resident pages."""
        assert self.rest is not None
        start, size = self.part(layer)
        index = self.layout.places[layer].index
        rest = self.rest
        return PartRequest(tier, rest.slot[pages], start, size, index, rest.checksums, rest.is_known, pages)

    def requests(self, layer: int, pages: np.ndarray) -> list[tuple[np.ndarray, PartRequest]]:
        """Of ``pages``, those that have to be read through the window: (pages, request) for each tier that has some."""
        return [(those, self.request(layer, tier, those)) for tier, those in self.to_read(pages)]
