"""Selective attention: a decode step reads the pages whose digests promise most, and leaves the others where they lie.

    layers without a window, one new token      digests of pages that became full -> scores -> a page list per KV head
                                                -> attention to these, by address
    everything else                             exactly; what became full is noted on the way

What is stored never changes. Pages that are not resident cost a read only when they are selected, or once, when their
digest is made: pages of a prefix that was found in a tier.
"""

import numpy as np
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.digests import Digests
from kvpager.attention.head_pages import attend_head_pages
from kvpager.attention.kept_rows import KeptRows, Rows, head_bytes
from kvpager.attention.page_selection import PageBudget, Selected, select_pages
from kvpager.attention.page_view import PageView
from kvpager.attention.parts_in_turn import parts_in_turn
from kvpager.config.attend import Selective, describe
from kvpager.errors import ConfigError
from kvpager.memory.layout import KVLayout

_GROWTH = 1 / (1 - 1 / 32)  # of what a touch counts, from step to step: touches fade over some 32 steps
_LARGEST = 1e20  # before it leaves the range of floats


class _Layer:
    """What is kept of one layer. ``length``: tokens after the latest step that was seen. ``age``: steps in which
    ``selected`` was used, first with ``num_pages`` pages."""

    def __init__(self, digests: Digests, kept: KeptRows) -> None:
        self.digests = digests
        self.kept = kept
        self.length = 0
        self.selected: Selected | None = None
        self.age = 0
        self.num_pages = 0

    def cut(self, length: int, page_size: int) -> None:
        """Forgets what is known of tokens from ``length`` on, where there are any."""
        if length < self.length:
            self.digests.cut(length // page_size)
            self.kept.cut(length // page_size)
            self.selected = None
            self.length = length


class _Use:
    """Which pages of a group were selected lately: a page counts once a layer and step, by whichever heads."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.float32)
        self.weight = 1.0
        self.length = 0  # tokens at the latest step

    def add(self, pages: np.ndarray, num_pages: int, length: int) -> None:
        if length != self.length:
            self.length = length
            self.weight *= _GROWTH
        if self.weight > _LARGEST:
            self.counts /= self.weight
            self.weight = 1.0
        if num_pages > len(self.counts):
            self.counts = np.concatenate([self.counts, np.zeros(num_pages, np.float32)])
        is_in = np.zeros(num_pages, np.bool_)
        is_in[pages] = True
        self.counts[:num_pages] += is_in * np.float32(self.weight)

    def shares(self, num_pages: int) -> np.ndarray | None:
        counts = self.counts[:num_pages]
        return counts / counts.sum() if counts.any() else None

    def copy(self) -> "_Use":
        other = _Use()
        other.counts, other.weight, other.length = self.counts.copy(), self.weight, self.length
        return other


class SelectiveState:
    """A LayerState. ``prompt_tokens``: these are computed exactly, even where they come one by one."""

    is_exact = False

    def __init__(self, layout: KVLayout, settings: Selective, prompt_tokens: int = 0) -> None:
        if layout.is_quantized:
            raise ConfigError(
                f"selective attention needs keys in float32, bfloat16 or float16, not {layout.dtype}: choose another "
                "KV dtype, or attend exactly"
            )
        self.description = describe(settings)
        self._layout = layout
        self._settings = settings
        self._prompt_tokens = prompt_tokens
        full = [layer for layer, place in enumerate(layout.places) if layout.groups[place.group].window is None]
        spare = {size: Rows(size) for size in {head_bytes(layout, layer) for layer in full}}
        self._layers = {
            layer: _Layer(
                Digests(layout, layer), KeptRows(layout, layer, 1 / len(full), spare[head_bytes(layout, layer)])
            )
            for layer in full
        }
        self._use = {place.group: _Use() for place in layout.places}
        self._num_pages = 0
        self._skipped: list[float] = []
        self._skipped_at = -1
        self._ended_steps, self._ended_skipped = 0, 0.0  # of the steps before the latest

    @property
    def skipped_mass(self) -> float | None:
        """Share of the attention that the latest selective step left out, the mean of its layers and heads: estimated
        when pages were selected (page_selection.py), against what attention to the others summed up to since."""
        return sum(self._skipped) / len(self._skipped) if self._skipped else None

    @property
    def num_steps(self) -> int:
        """Steps that selected pages, of this sequence and not of one it was forked from."""
        return self._ended_steps + bool(self._skipped)

    @property
    def skipped_sum(self) -> float:
        """Their ``skipped_mass``, added up."""
        return self._ended_skipped + (self.skipped_mass or 0.0)

    @property
    def num_digest_bytes(self) -> int:
        return sum(each.digests.num_bytes for each in self._layers.values())

    @property
    def num_kept_bytes(self) -> int:
        """Rows of selected pages that have no block."""
        return sum(each.kept.num_bytes for each in self._layers.values())

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        known = self._known(layer, view)
        if known is None or view.queries != 1 or view.num_tokens <= self._prompt_tokens:
            return None
        budget = PageBudget.of(self._settings, view.num_tokens, view.layout.page_size)
        if budget.takes_all:
            return None
        missing = known.digests.missing(view.num_tokens // view.layout.page_size)
        if len(missing):
            for pages, addresses in parts_in_turn(view, layer, missing):
                known.digests.update(pages, addresses)
        query = q[0] if q.stride(2) == 1 else q[0].contiguous()
        selected = self._selected(view, known, query, options, budget)
        self._use[view.group].add(selected.pages, budget.num_pages, view.num_tokens)
        out, lse = self._attend_to(layer, view, known, query, options, selected)
        self._note_skipped(view.num_tokens, selected.log_skipped, lse)
        return out.to(q.dtype)[None]

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        known = self._known(layer, view)
        if known is None:
            return
        missing = known.digests.missing(view.num_tokens // view.layout.page_size)
        if len(missing):  # those that can't be read in place wait for the first step that selects
            addresses = view.addresses(layer, missing)
            is_here = addresses != 0
            if is_here.any():
                known.digests.update(missing[is_here], addresses[is_here])

    def page_use(self, group: int) -> np.ndarray | None:
        return self._use[group].shares(self._num_pages)

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        return np.empty(0, np.int64)

    def forked(self) -> "SelectiveState":
        other = SelectiveState(self._layout, self._settings, self._prompt_tokens)
        other._num_pages = self._num_pages
        other._use = {group: use.copy() for group, use in self._use.items()}
        for layer, known in self._layers.items():
            other._layers[layer].digests = known.digests.copy()
            other._layers[layer].length = known.length
        return other

    def cut(self, length: int) -> None:
        self._num_pages = self._layout.num_pages(length)
        for use in self._use.values():
            use.counts[self._num_pages :] = 0
        for known in self._layers.values():
            known.cut(length, self._layout.page_size)

    def _known(self, layer: int, view: PageView) -> _Layer | None:
        """None where a layer attends exactly whatever it is asked. A step that was taken back is forgotten here."""
        known = self._layers.get(layer)
        if known is None or view.arena.device != "cpu":
            return None
        known.cut(view.start, view.layout.page_size)
        known.length = view.num_tokens
        self._num_pages = len(view.blocks)
        return known

    def _selected(
        self, view: PageView, known: _Layer, query: Tensor, options: LayerOptions, budget: PageBudget
    ) -> Selected:
        if known.selected is not None and known.age < self._settings.reuse:
            known.age += 1
            return known.selected.extended(known.num_pages, budget.num_pages)
        kv_heads = view.layout.groups[view.group].kv_heads
        known.selected = select_pages(known.digests, query, options, budget, kv_heads, view.layout.page_size)
        known.age, known.num_pages = 1, budget.num_pages
        return known.selected

    def _attend_to(
        self,
        layer: int,
        view: PageView,
        known: _Layer,
        query: Tensor,
        options: LayerOptions,
        selected: Selected,
    ) -> tuple[Tensor, Tensor]:
        """Out [query_heads, head_dim] and the log of the sum of exp(score) [query_heads], both float32."""
        last_tokens = view.num_tokens - (len(view.blocks) - 1) * view.layout.page_size
        addresses = view.addresses(layer, selected.pages)
        away = np.flatnonzero(addresses == 0) if view.rest is not None else ()
        if len(away):
            heads = np.repeat(np.arange(len(selected.offsets) - 1), np.diff(selected.offsets))
            addresses[away] = known.kept.addresses(view, heads[away], selected.pages[away])
        return attend_head_pages(view.layout, layer, query, selected.offsets, addresses, last_tokens, options)

    def _note_skipped(self, length: int, log_skipped: np.ndarray, lse: Tensor) -> None:
        """The estimated sum over what was left out, against the measured one over what was not."""
        if length != self._skipped_at:
            self._ended_steps, self._ended_skipped = self.num_steps, self.skipped_sum
            self._skipped, self._skipped_at = [], length
        with np.errstate(over="ignore"):
            self._skipped.append(float(np.mean(1 / (1 + np.exp(lse.numpy() - log_skipped)))))
