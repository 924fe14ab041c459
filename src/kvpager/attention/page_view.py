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
from kvpager.cache.step import StepBatch, Touched
from kvpager.memory.arena import Arena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.staging import PartRequest, Window
from kvpager.types import TierKind


@dataclass(frozen=True, slots=True)
class PageView:
    """Of sequence ``s`` of a step in layer ``group``: queries at positions ``start`` .. ``start + queries``.

    ``blocks`` int32 [pages]: as in StepBatch.tables, cut to the pages that hold tokens. ``rest``: None where every page
    is resident or gone.
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

    @classmethod
    def of(cls, batch: StepBatch, arena: Arena, group: int, s: int) -> "PageView":
        start, queries = int(batch.starts[s]), int(batch.query_lengths[s])
        blocks = batch.tables[group][s][: batch.layout.num_pages(start + queries)]
        rest = batch.non_resident.get((group, s))
        return cls(batch.layout, arena, s, group, start, queries, blocks, rest, batch.window, batch.touched)

    @property
    def num_tokens(self) -> int:
        return self.start + self.queries

    def present(self) -> np.ndarray:
        """bool [pages]: not gone for good."""
        here = self.blocks >= 0
        return here if self.rest is None else here | (self.rest.tier[: len(here)] != TierKind.NONE)

    def part(self, layer: int) -> tuple[int, int]:
        """Start and size, in bytes, of what ``layer`` has of a page. REQUIRES: not a quantized layout."""
        place, layout = self.layout.places[layer], self.layout
        shape = layout.groups[place.group]
        size = shape.kv_heads * 2 * layout.page_size * shape.head_dim * layout.item_bytes
        return place.index * size, size

    def addresses(self, layer: int, pages: np.ndarray) -> np.ndarray:
        """int64 byte address of ``layer``'s part of each of ``pages`` that a processor reads in place; 0 of others."""
        start, _ = self.part(layer)
        blocks = self.blocks[pages].astype(np.int64)
        found = np.where(blocks >= 0, self.arena.address + blocks * self.arena.block_stride, 0)
        if self.rest is not None:
            found = np.where(blocks >= 0, found, self.rest.address[pages])
        return np.where(found != 0, found + start, 0)

    def requests(self, layer: int, pages: np.ndarray) -> list[tuple[np.ndarray, PartRequest]]:
        """Of ``pages``, those that have to be read through the window: (pages, request) for each tier that has some."""
        rest = self.rest
        if rest is None:
            return []
        start, size = self.part(layer)
        index = self.layout.places[layer].index
        found = []
        for tier in np.unique(rest.tier[pages[(self.blocks[pages] < 0) & (rest.address[pages] == 0)]]).tolist():
            if tier == TierKind.NONE:
                continue
            those = pages[(rest.tier[pages] == tier) & (rest.address[pages] == 0)]
            request = PartRequest(
                TierKind(tier), rest.slot[those], start, size, index, rest.checksums, rest.is_known, those
            )
            found.append((those, request))
        return found
