"""One sequence of a step in one layer group, attended to segment by segment by the native kernels.

    pages      | block | host | disk | disk | block | ... |       any that are gone for good are not in the list
    segments   |          0           |          1        |       2,048 slots each
                  in place, staged

A segment is attended to when all its pages lie in memory: blocks and host pages where they are, others in the staging
window. The bits are those of attention to resident pages. Which requests are read when is known to streamed.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.native_call import NativeCall
from kvpager.attention.page_view import PageView
from kvpager.attention.parts import Read, check_readable, count_read, read_parts
from kvpager.tiers.staging import PartRequest
from kvpager.types import TierKind

_SEGMENT = 2048  # slots, as the kernels cut them

# What is done between two breaths: a few milliseconds.
_BYTES_AT_ONCE = 32 << 20  # of K and V, by few queries
_PRODUCTS_AT_ONCE = 1 << 28  # of elements, by many


@dataclass(frozen=True, slots=True)
class _Run:
    """Segments ``first`` .. ``stop``, attended to by one call once ``to_read`` was read into ``entries``."""

    first: int
    stop: int
    to_read: list[tuple[TierKind, np.ndarray]]
    entries: list[np.ndarray]  # of the page list, for each tier of to_read


class Segments:
    """``pages``: ascending, any of the sequence's; default: all that its queries see."""

    def __init__(self, module: ModuleType, view: PageView, pages: np.ndarray | None = None) -> None:
        self.view = view
        self._threads = module.num_threads()
        self._pages = view.seen() if pages is None else np.asarray(pages, np.int64)
        has_all = pages is None and view.is_dense(self._pages)
        addresses = view.page_addresses(self._pages)
        blocks = view.blocks[self._pages]
        self._in_place = int(((blocks < 0) & (addresses != 0)).sum())
        self.is_read = bool(view.to_read(self._pages))
        if self.is_read or self._in_place:
            check_readable(view)
        self._kernel = module.SegmentedAttention(
            start=view.start,
            num_queries=view.queries,
            addresses=addresses,
            origin=view.arena.address,
            pages=None if has_all else self._pages.astype(np.int32),
            window=view.layout.groups[view.group].window or 0,
            page_size=view.layout.page_size,
        )
        self._runs: dict[int, list[_Run]] = {}

    def requests(self, layer: int, group: int) -> Iterator[PartRequest]:
        """What ``attend`` reads, in its order. ``group``: query heads per KV head."""
        for run in self.runs(group):
            for tier, pages in run.to_read:
                yield self.view.request(layer, tier, pages)

    def attend(
        self,
        layer: int,
        native_layer: Any,
        q: Tensor,
        out: Tensor,
        options: LayerOptions,
        read: Read,
        lse: Tensor | None = None,
    ) -> None:
        """q [queries, query_heads, head_dim] to ``out``; ``lse`` as NativeCall has it. Raises PagesLost."""
        view, kernel = self.view, self._kernel
        call = NativeCall.of(kernel, native_layer, q, out, options, lse)
        kernel.begin(*call.arguments)
        for run in self.runs(q.shape[1] // native_layer.kv_heads):
            staged = read_parts(view, layer, run.to_read, read)
            for entries, addresses in zip(run.entries, staged.addresses, strict=True):
                kernel.stage(entries, addresses)
            parts = self._parts(q) if self._breathes else 1
            for part in range(parts):
                kernel.add(run.first, run.stop, part, parts)
                if view.window is not None:
                    view.window.pace.breathe()
        kernel.finish()
        if self._in_place:
            count_read(view, self._in_place, self._in_place * view.part(layer)[1])

    def runs(self, group: int) -> list[_Run]:
        """Made once for each ``group``. Segments in place are taken together: as many as few queries pass quickly, or
        all that follow one another where nobody waits for a breath."""
        if group not in self._runs:
            segments = self._kernel.segments(group)
            shape = self.view.layout.groups[self.view.group]
            num_bytes = _SEGMENT * shape.kv_heads * 2 * shape.head_dim * self.view.layout.item_bytes
            at_once = max(1, _BYTES_AT_ONCE // num_bytes // self.view.queries) if self._breathes else len(segments)
            runs: list[_Run] = []
            for number, (first, stop) in enumerate(segments):
                to_read = self.view.to_read(self._pages[first:stop])
                last = runs[-1] if runs else None
                if not to_read and last and not last.to_read and last.stop - last.first < at_once:
                    runs[-1] = _Run(last.first, number + 1, [], [])
                else:
                    entries = [np.searchsorted(self._pages, pages) for _, pages in to_read]
                    runs.append(_Run(number, number + 1, to_read, entries))
            self._runs[group] = runs
        return self._runs[group]

    @property
    def _breathes(self) -> bool:
        """Whether somebody may want the processors in between."""
        return self.view.window is not None and self.view.window.pace.is_shared

    def _parts(self, q: Tensor) -> int:
        """In how many calls a segment is attended to."""
        products = 2 * q.numel() * _SEGMENT
        return max(1, min(products // _PRODUCTS_AT_ONCE, self._kernel.num_items // self._threads))
