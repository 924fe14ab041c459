"""Selective attention: a decode step reads the pages whose digests promise most, and leaves the others where they lie.

    layers without a window, one new token      digests of pages that became full -> scores -> a page list per KV head
                                                -> attention to these, by address
    everything else                             exactly; what became full is noted on the way

What is stored never changes. Pages that are not resident cost a read only when they are selected, or once, when their
digest is made: pages of a prefix that was found in a tier.
"""

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention import selective_reference as reference
from kvpager.attention.backend import LayerOptions
from kvpager.attention.digests import Digests
from kvpager.attention.page_selection import PageBudget, Selected, dtype_name, select_pages
from kvpager.attention.page_view import PageView
from kvpager.config.attend import Selective, describe
from kvpager.errors import ConfigError
from kvpager.memory.layout import KVLayout

_GROWTH = 1 / (1 - 1 / 32)  # of what a touch counts, from step to step: touches fade over some 32 steps
_LARGEST = 1e20  # before it leaves the range of floats


class _Layer:
    """What is kept of one layer. ``age``: steps that ``selected`` was used in; ``num_pages`` there were then."""

    def __init__(self, digests: Digests) -> None:
        self.digests = digests
        self.selected: Selected | None = None
        self.age = 0
        self.num_pages = 0


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
        self.counts[pages] += self.weight

    def shares(self, num_pages: int) -> np.ndarray | None:
        counts = self.counts[:num_pages]
        return counts / counts.sum() if counts.any() else None

    def copy(self) -> "_Use":
        other = _Use()
        other.counts, other.weight, other.length = self.counts.copy(), self.weight, self.length
        return other


class SelectiveState:
    """A LayerState. ``skipped_mass``: share of the attention that the latest step left out, estimated, the mean of its
    layers and heads; None before the first selective step."""

    is_exact = False

    def __init__(self, layout: KVLayout, settings: Selective) -> None:
        if layout.is_quantized:
            raise ConfigError(
                f"selective attention needs keys in float32, bfloat16 or float16, not {layout.dtype}: choose another "
                "KV dtype, or attend exactly"
            )
        self.description = describe(settings)
        self._layout = layout
        self._settings = settings
        self._layers = {
            layer: _Layer(Digests(layout, layer))
            for layer, place in enumerate(layout.places)
            if layout.groups[place.group].window is None
        }
        self._use = {place.group: _Use() for place in layout.places}
        self._num_pages = 0
        self._skipped: list[float] = []
        self._skipped_at = -1

    @property
    def skipped_mass(self) -> float | None:
        return sum(self._skipped) / len(self._skipped) if self._skipped else None

    @property
    def num_digest_bytes(self) -> int:
        return sum(each.digests.num_bytes for each in self._layers.values())

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        known = self._layers.get(layer)
        if known is None or view.queries != 1 or view.arena.device != "cpu":
            return None
        budget = PageBudget.of(self._settings, view.num_tokens, view.layout.page_size)
        if budget.takes_all or not self._cover(layer, view, known.digests):
            return None
        query = q[0] if q.stride(2) == 1 else q[0].contiguous()
        selected = self._selected(layer, view, known, query, options, budget)
        union = np.unique(selected.pages)
        self._use[view.group].add(union, budget.num_pages, view.num_tokens)
        addresses = view.addresses(layer, selected.pages)
        out, lse = self._attend_to(layer, view, query, options, selected, addresses)
        self._note_skipped(view.num_tokens, selected.log_skipped, lse)
        return out.to(q.dtype)[None]

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        known = self._layers.get(layer)
        if known is not None and view.arena.device == "cpu":
            self._cover(layer, view, known.digests)

    def page_use(self, group: int) -> np.ndarray | None:
        return self._use[group].shares(self._num_pages)

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        return np.empty(0, np.int64)

    def forked(self) -> "SelectiveState":
        other = SelectiveState(self._layout, self._settings)
        other._num_pages = self._num_pages
        other._use = {group: use.copy() for group, use in self._use.items()}
        for layer, known in self._layers.items():
            other._layers[layer] = _Layer(known.digests.copy())
        return other

    def cut(self, length: int) -> None:
        num_full, self._num_pages = length // self._layout.page_size, self._layout.num_pages(length)
        for use in self._use.values():
            use.counts[self._num_pages :] = 0
        for known in self._layers.values():
            known.digests.cut(num_full)
            known.selected = None

    def _cover(self, layer: int, view: PageView, digests: Digests) -> bool:
        """Makes the digests of full pages that have none. False: some lie where they can't be read in place."""
        self._num_pages = len(view.blocks)
        missing = digests.missing(view.num_tokens // view.layout.page_size)
        if not len(missing):
            return True
        addresses = view.addresses(layer, missing)
        here = addresses != 0
        if here.any():
            digests.update(missing[here], addresses[here])
        return bool(here.all())

    def _selected(
        self, layer: int, view: PageView, known: _Layer, query: Tensor, options: LayerOptions, budget: PageBudget
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
        query: Tensor,
        options: LayerOptions,
        selected: Selected,
        addresses: np.ndarray,
    ) -> tuple[Tensor, Tensor]:
        """Out [query_heads, head_dim] and the log of the sum of exp(score) [query_heads], both float32."""
        last_tokens = view.num_tokens - (len(view.blocks) - 1) * view.layout.page_size
        kernels = native.module()
        if kernels is None:
            shape = view.layout.groups[view.group]
            part = shape.kv_heads, view.layout.page_size, shape.head_dim
            held = [reference.rows_at(address, part, view.layout.dtype) for address in addresses.tolist()]
            bounds = selected.offsets.tolist()
            lists = [
                torch.stack([each[head] for each in held[bounds[head] : bounds[head + 1]]])
                for head in range(shape.kv_heads)
            ]
            return reference.attend(query, lists, last_tokens, options)
        out, lse = torch.empty(query.shape), torch.empty(query.shape[0])
        sinks = None if options.sinks is None else options.sinks.to(device="cpu", dtype=torch.float32).contiguous()
        kernels.attend_head_pages(
            self._layers[layer].digests.rows(kernels),
            selected.offsets,
            addresses,
            last_tokens,
            query.shape[0],
            query.data_ptr(),
            query.stride(0),
            dtype_name(query),
            out.data_ptr(),
            out.stride(0),
            dtype_name(out),
            query.shape[1] ** -0.5 if options.scale is None else options.scale,
            options.softcap or 0.0,
            0 if sinks is None else sinks.data_ptr(),
            lse.data_ptr(),
        )
        return out, lse

    def _note_skipped(self, length: int, log_skipped: np.ndarray, lse: Tensor) -> None:
        """The estimated sum over what was left out, against the measured one over what was not."""
        if length != self._skipped_at:
            self._skipped, self._skipped_at = [], length
        with np.errstate(over="ignore"):
            self._skipped.append(float(np.mean(1 / (1 + np.exp(lse.numpy() - log_skipped)))))
