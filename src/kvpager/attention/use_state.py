"""Measures which pages of an exactly attending sequence matter, so that those that don't can give up their blocks.

    decode step     t      t+1    t+2   ...  t+15    t+16
    measured      layer 0 layer 1 layer 2 ... (15)   layer 0, 16, ...     of a layer group, in turn

Measuring reads the keys of a layer once more, so each decode step measures about one layer in MEASURED_EVERY, by the
newest query alone; each step of a prompt one layer, by its last query. Pages on disk are not read for it: they keep
their share, and the pages that were read have the rest among them. Changes no answer.
"""

import copy

import numpy as np
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_mass import is_readable, page_masses
from kvpager.attention.page_view import PageView
from kvpager.config.attend import EXACT, describe
from kvpager.memory.layout import KVLayout

MEASURED_EVERY = 16  # decode steps after which a layer is measured again


class UseState:
    """A LayerState of exact attention. Per layer group and page an exponential moving average of attention shares, over
    about two rounds of the layers.

    Groups with a sliding window are not measured: their pages go when the window has passed.
    """

    is_exact = True

    def __init__(self, layout: KVLayout) -> None:
        self.description = describe(EXACT)
        self._layout = layout
        self._shares = [np.empty(0, np.float32) for _ in layout.groups]  # 1 in all, where anything was measured
        self._length = [0 for _ in layout.groups]  # of the sequence, when the last step was seen
        self._steps = [-1 for _ in layout.groups]  # number of that step

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        return None

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        group = view.group
        if self._layout.groups[group].window is not None or not self._has_turn(layer, view):
            return
        pages = np.arange(len(view.blocks))
        pages = pages[is_readable(view, pages)]
        position = view.num_tokens - 1
        masses = page_masses(view, layer, pages, q[-1:], position, 1, options).sum(axis=0) / q.shape[1]
        if np.isfinite(masses).all():
            self._note(group, len(view.blocks), pages, masses)

    def _has_turn(self, layer: int, view: PageView) -> bool:
        group, layers = view.group, len(self._layout.groups[view.group].layers)
        if view.num_tokens != self._length[group]:
            self._length[group] = view.num_tokens
            self._steps[group] += 1
        period = MEASURED_EVERY if view.queries == 1 else layers
        return (self._layout.places[layer].index - self._steps[group]) % period == 0

    def _note(self, group: int, num_pages: int, pages: np.ndarray, masses: np.ndarray) -> None:
        """``masses`` [pages]: 1 in all."""
        old = self._shares[group]
        shares = np.zeros(num_pages, np.float32)
        shares[: len(old)] = old[:num_pages]
        total = shares.sum()
        if total > 0:
            shares /= total
        of_these = shares[pages].sum() if total > 0 else 1.0
        rate = np.where(
            pages < len(old), 1 / (2 * len(self._layout.groups[group].layers)), 1.0
        )  # new ones: as they are
        shares[pages] += rate * (masses * of_these - shares[pages])
        self._shares[group] = shares

    def page_use(self, group: int) -> np.ndarray | None:
        total = self._shares[group].sum()
        return self._shares[group] / total if total > 0 else None

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        return np.empty(0, np.int64)

    def forked(self) -> "UseState":
        other = copy.copy(self)
        other._shares = [shares.copy() for shares in self._shares]
        other._length, other._steps = self._length.copy(), self._steps.copy()
        return other

    def cut(self, length: int) -> None:
        pages = self._layout.num_pages(length)
        self._shares = [shares[:pages] for shares in self._shares]
