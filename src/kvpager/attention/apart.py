"""Sequences of a step that are attended to one by one, because their pages are no plain list of blocks or because a
state goes with them: which they are, and in which order states take part. Knows no kernels.
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_view import PageView
from kvpager.attention.states import LayerState
from kvpager.cache.step import StepBatch
from kvpager.memory.arena import Arena

Exactly = Callable[[int, list[PageView], Tensor, Tensor, LayerOptions], None]  # layer, views, packed q and out, options


class Apart:
    """Of one step. ``views[group]``: the sequences that are attended to here in layers of this group."""

    def __init__(self, batch: StepBatch, arena: Arena) -> None:
        self._batch = batch
        self.views = [
            [PageView.of(batch, arena, group, s) for s in _members(batch, group)]
            for group in range(batch.layout.num_groups)
        ]

    @classmethod
    def is_needed(cls, batch: StepBatch) -> bool:
        return bool(batch.non_resident) or any(state is not None for state in batch.states)

    def members(self, group: int) -> list[int]:
        return [view.s for view in self.views[group]]

    def attend(self, layer: int, q: Tensor, out: Tensor, options: LayerOptions, exactly: Exactly) -> None:
        """Packed q [tokens, query_heads, head_dim]; the rows of these sequences are written to ``out``. ``exactly``
        does so for all pages of some views."""
        offsets = self._batch.offsets()
        left: list[PageView] = []
        for view in self.views[self._batch.layout.places[layer].group]:
            state = self.state(view)
            rows = slice(int(offsets[view.s]), int(offsets[view.s + 1]))
            found = None if state is None else state.attend(layer, view, q[rows], options)
            if found is None:
                left.append(view)
            else:
                out[rows] = found
        exactly(layer, left, q, out, options)
        for view in left:
            state = self.state(view)
            if state is not None:
                state.attended(layer, view, q[offsets[view.s] : offsets[view.s + 1]], options)

    def state(self, view: PageView) -> LayerState | None:
        return self._batch.states[view.s] if self._batch.states else None  # type: ignore[return-value]


def plain_sequences(batch: StepBatch, apart: Apart | None) -> list[np.ndarray]:
    """Per group, the others: their pages are plain lists of blocks."""
    every = np.arange(batch.num_sequences)
    return [np.setdiff1d(every, apart.members(g)) if apart else every for g in range(batch.layout.num_groups)]


def _members(batch: StepBatch, group: int) -> list[int]:
    found = {s for number, s in batch.non_resident if number == group}
    found.update(s for s, state in enumerate(batch.states) if state is not None)
    return sorted(found)
