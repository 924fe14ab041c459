"""In-request eviction: a running request gives pages of its own context back for good, so that its memory is bounded.

    page     0      1      2      3      4      5      6      7
           sinks                                     recent  last         never given back
                  |------ given back: behind the window, or attended to least -----|

Three kinds, all approximate and opt-in, all at the granularity of pages: what goes is a whole page in all layers and
heads of a layer group, because these share the page table and the block. So attention masses are summed over the
layers and heads of the group, where the papers choose tokens per layer and head. Positions stay as they are: a token
keeps the rotation it was written with. Groups with a sliding window are left alone.

Measures and decides only; the cache takes the pages out of the sequence. Pages that others share stay whole.
"""

import copy
from abc import ABC, abstractmethod
from typing import Literal, Self

import numpy as np
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.held_pages import HeldPages
from kvpager.attention.page_mass import is_readable, page_masses
from kvpager.attention.page_view import PageView
from kvpager.cache.prefix_match import first_visible_page
from kvpager.config.attend import Attend, HeavyHitters, SinksAndWindow, SnapKV, describe
from kvpager.memory.layout import KVLayout

MOST_QUERIES = 32  # of one step that heavy hitters are measured by
_NONE = np.empty(0, np.int64)


class _InRequest(ABC):
    """What the kinds share: a LayerState that attends exactly to what is still there."""

    is_exact = False
    _unread = 0.0  # mass of a page that can't be read in place

    def __init__(self, layout: KVLayout, kind: Attend) -> None:
        self.description = describe(kind)
        self._layout = layout
        self._held = [HeldPages() if group.window is None else None for group in layout.groups]
        self._of_step: list[dict[int, np.ndarray]] = [{} for _ in layout.groups]  # masses by layer, until it is closed

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        return None

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        held = self._held[view.group]
        chosen = slice(0) if held is None else self._measuring(view)
        rows = q[chosen]
        if held is None or not len(rows):
            return
        pages = held.grown(self._layout.num_pages(view.num_tokens))
        can_read = is_readable(view, pages)
        masses = np.full(len(pages), self._unread)
        position, step = view.start + (chosen.start or 0), chosen.step or 1
        found = page_masses(view, layer, pages[can_read], rows, position, step, options)
        masses[can_read] = found.sum(axis=0) * step
        self._of_step[view.group][layer] = masses

    def page_use(self, group: int) -> np.ndarray | None:
        return None

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        held = self._held[group]
        if held is None:
            return _NONE
        held.grow(self._layout.num_pages(length))
        for masses in self._of_step[group].values():
            held.masses += masses
        self._of_step[group].clear()
        return held.give_back(self._least(held, length))

    def _measuring(self, view: PageView) -> slice:
        """The queries of a step whose masses are needed."""
        return slice(0)

    @abstractmethod
    def _least(self, held: HeldPages, length: int) -> np.ndarray:
        """Places in ``held`` of pages that go."""

    def _may_go(self, pages: np.ndarray, length: int, sinks: int, recent: int) -> np.ndarray:
        """bool: neither among the first ``sinks`` nor the last ``recent`` tokens of ``length``, nor the last page."""
        size = self._layout.page_size
        stop = min(first_visible_page(length, recent, size), (length - 1) // size)
        return (pages >= self._layout.num_pages(sinks)) & (pages < stop)

    def forked(self) -> Self:
        other = copy.copy(self)
        other._held = [held and held.copy() for held in self._held]
        other._of_step = [{} for _ in self._of_step]
        return other

    def cut(self, length: int) -> None:
        for held, masses in zip(self._held, self._of_step, strict=True):
            masses.clear()
            if held is not None:
                held.cut(self._layout.num_pages(length))


class SinksAndWindowState(_InRequest):
    """Keeps the first ``sinks`` and the last ``window`` tokens (StreamingLLM: Xiao et al., ICLR 2024).

    Unlike there, positions are not counted anew inside what is kept: this bounds memory, but takes no model beyond the
    positions it was trained for.
    """

    def __init__(self, layout: KVLayout, kind: SinksAndWindow) -> None:
        super().__init__(layout, kind)
        self._kind = kind

    def _least(self, held: HeldPages, length: int) -> np.ndarray:
        return np.flatnonzero(self._may_go(held.pages, length, self._kind.sinks, self._kind.window))


class HeavyHittersState(_InRequest):
    """Keeps ``budget`` tokens: the first ``sinks``, the last ``recent``, and of the others the pages with the largest
    attention mass so far, over all queries since they were written (H2O: Zhang et al., NeurIPS 2023).

    A step with many queries is measured by MOST_QUERIES of them at most, evenly spaced with the last among them, each
    of which counts for those it stands for.
    """

    def __init__(self, layout: KVLayout, kind: HeavyHitters) -> None:
        super().__init__(layout, kind)
        self._kind = kind

    def _measuring(self, view: PageView) -> slice:
        step = -(-view.queries // MOST_QUERIES)
        return slice((view.queries - 1) % step, None, step)

    def _least(self, held: HeldPages, length: int) -> np.ndarray:
        excess = len(held.pages) - self._layout.num_pages(self._kind.budget)
        candidates = np.flatnonzero(self._may_go(held.pages, length, self._kind.sinks, self._kind.recent))
        order = np.argsort(held.masses[candidates], kind="stable")  # of equals, the older one
        return candidates[order[: max(0, excess)]]


class SnapKVState(_InRequest):
    """After the prompt, keeps ``budget`` tokens of it: the first ``sinks``, the last ``observe``, and of the others the
    pages which those last queries attend to most (SnapKV: Li et al., NeurIPS 2024). What is generated is kept.

    The mass of a page is pooled with that of its two neighbours, by their largest or their mean, so that what lies
    beside an important place stays with it. ``prompt_tokens``: where the prompt ends; as long as it is None, nothing
    is given back. Pages that can't be read in place (on disk) have no block to give back, and are kept.
    """

    _unread = np.nan

    def __init__(
        self, layout: KVLayout, kind: SnapKV, prompt_tokens: int | None = None, pooling: Literal["max", "mean"] = "max"
    ) -> None:
        super().__init__(layout, kind)
        self.prompt_tokens = prompt_tokens
        self._kind = kind
        self._pool = np.max if pooling == "max" else np.mean
        self._is_done = [False for _ in layout.groups]

    def _measuring(self, view: PageView) -> slice:
        if self.prompt_tokens is None:
            return slice(0)
        first = max(view.start, self.prompt_tokens - self._kind.observe)
        return slice(first - view.start, max(first, min(view.num_tokens, self.prompt_tokens)) - view.start)

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        if self._is_done[group] or self._held[group] is None:
            return _NONE
        self._is_done[group] = self.prompt_tokens is not None and length >= self.prompt_tokens
        return super().pages_to_give_back(group, length)

    def _least(self, held: HeldPages, length: int) -> np.ndarray:
        prompt = self.prompt_tokens
        if prompt is None or length < prompt:
            return _NONE
        beside = np.pad(held.masses, 1)
        pooled = self._pool([beside[:-2], beside[1:-1], beside[2:]], axis=0)
        excess = self._layout.num_pages(prompt) - self._layout.num_pages(self._kind.budget)
        may_go = self._may_go(held.pages, prompt, self._kind.sinks, self._kind.observe) & np.isfinite(held.masses)
        candidates = np.flatnonzero(may_go)
        order = np.argsort(pooled[candidates], kind="stable")
        return candidates[order[: max(0, excess)]]

    def forked(self) -> Self:
        other = super().forked()
        other._is_done = self._is_done.copy()
        return other
