"""Exact attention over pages that are not resident: all parts that a step needs are read by one stream, ahead of need.

    layer 0                          layer 1
    | A: segment 0 | 1 | ... | B: ... | A: segment 0 | ...       requests, in the order in which they are attended to

While one segment is attended to, the next are being read, those of the next layer too. Sequences whose state attends
its own way are left out, as long as it does; where layers come in another order, the stream starts again there.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_view import PageView
from kvpager.attention.parts import window_of
from kvpager.attention.segments import Segments
from kvpager.cache.step import StepBatch
from kvpager.tiers.staging import PartRequest, PartStream, Staged


class StreamedPlan:
    """One step. ``views[group]``: the sequences that may be attended to here; ``layers``: as the kernels take them."""

    def __init__(self, module: ModuleType, batch: StepBatch, views: list[list[PageView]], layers: list[Any]) -> None:
        self._stream: PartStream | None = None
        self._expected: tuple[int, int] | None = None  # the next layer of the stream, and its query heads
        self._stateful: dict[int, frozenset[int]] = {}  # by group, as _follow has them
        self._native = module
        self._batch = batch
        self._views = views
        self._layers = layers
        self._offsets = batch.offsets().tolist()
        self._segments: dict[tuple[int, int], Segments] = {}

    def attend(self, layer: int, views: list[PageView], q: Tensor, out: Tensor, options: LayerOptions) -> None:
        """``views``: of this layer's group, ascending. Raises PagesLost."""
        try:
            segments = [self._segments_of(view) for view in views]
            self._follow(layer, q.shape[1], frozenset(view.s for view in views if self._has_state(view)))
            for each in segments:
                rows = slice(self._offsets[each.view.s], self._offsets[each.view.s + 1])
                each.attend(layer, self._layers[layer], q[rows], out[rows], options, self._read)
        except BaseException:
            self.close()
            raise
        if layer + 1 == self._batch.layout.layers:
            self.close()

    def close(self) -> None:
        """What was read ahead is dropped."""
        stream, self._stream, self._expected = self._stream, None, None
        if stream is not None:
            stream.__exit__(None, None, None)

    def __del__(self) -> None:  # a step may end between two layers, and nobody tells the plan
        self.close()

    def _follow(self, layer: int, query_heads: int, stateful: frozenset[int]) -> None:
        """Sees to it that the stream goes on with ``layer``. ``stateful``: the sequences with a state that are attended
        to exactly; assumed to be the same in the layers of the group to come, and none in groups not met yet."""
        group = self._batch.layout.places[layer].group
        if self._expected != (layer, query_heads) or self._stateful.get(group, frozenset()) != stateful:
            self.close()
        self._stateful[group] = stateful
        if self._stream is None:
            read = [
                [each for view in views if self._is_streamed(view) and (each := self._segments_of(view)).is_read]
                for views in self._views
            ]
            if any(read):
                self._stream = self._open(layer, query_heads, read)
        self._expected = (layer + 1, query_heads)

    def _open(self, first: int, query_heads: int, read: list[list[Segments]]) -> PartStream:
        """``read[group]``: what has to be read at all."""
        layout = self._batch.layout
        per_kv_head = [query_heads // group.kv_heads for group in layout.groups]
        for number, members in enumerate(read):
            for each in members:
                each.runs(per_kv_head[number])  # made now: the stream may ask for requests from other threads

        def requests() -> Iterator[PartRequest]:
            for layer in range(first, layout.layers):
                group = layout.places[layer].group
                for each in read[group]:
                    yield from each.requests(layer, per_kv_head[group])

        window = window_of(next(each.view for members in read for each in members))
        return window.stream(requests()).__enter__()

    def _read(self, request: PartRequest) -> Staged:
        assert self._stream is not None
        return self._stream.next()

    def _segments_of(self, view: PageView) -> Segments:
        key = view.group, view.s
        if key not in self._segments:
            self._segments[key] = Segments(self._native, view)
        return self._segments[key]

    def _is_streamed(self, view: PageView) -> bool:
        return not self._has_state(view) or view.s in self._stateful.get(view.group, ())

    def _has_state(self, view: PageView) -> bool:
        return bool(self._batch.states) and self._batch.states[view.s] is not None
