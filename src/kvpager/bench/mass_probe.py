"""How much of exact attention's mass lies in the pages that selection would have taken, measured as it happens.

A state that leaves attention exact. In each decode step and layer it makes the page lists of selective attention with
several budgets, from digests and queries as they are, and compares them with the softmax over all keys.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.digests import Digests
from kvpager.attention.page_selection import PageBudget, Selected, select_pages
from kvpager.attention.page_view import PageView
from kvpager.config.attend import Selective
from kvpager.memory.layout import KVLayout
from kvpager.tiers.rows import LayerRows


@dataclass(slots=True)
class Masses:
    """Of one way of selecting: a row [query_heads] for each step and layer, and which ``layers`` these were.

    ``best``: what lies in as many pages if the right ones are taken. ``estimated``: what the state would say is left
    out, where ``1 - selected`` is.
    """

    layers: list[int] = field(default_factory=list)
    selected: list[np.ndarray] = field(default_factory=list)
    best: list[np.ndarray] = field(default_factory=list)
    estimated: list[np.ndarray] = field(default_factory=list)


class MassProbe:
    """A LayerState. ``masses[name]`` of each of ``kinds``. REQUIRES: resident pages, no window, no sink logits."""

    description = "exact, measured"
    is_exact = True

    def __init__(self, layout: KVLayout, kinds: dict[str, Selective]) -> None:
        self.masses = {name: Masses() for name in kinds}
        self._kinds = kinds
        self._layout = layout
        self._digests = [Digests(layout, layer) for layer in range(layout.layers)]

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        return None

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        digests = self._digests[layer]
        missing = digests.missing(view.num_tokens // self._layout.page_size)
        if len(missing):
            digests.update(missing, view.addresses(layer, missing))
        if view.queries != 1:
            return
        logs = page_logs(view, layer, q[0], options)
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
        kv_heads = self._layout.groups[view.group].kv_heads
        query = q[0].contiguous()
        for name, kind in self._kinds.items():
            budget = PageBudget.of(kind, view.num_tokens, self._layout.page_size)
            chosen = select_pages(digests, query, options, budget, kv_heads, self._layout.page_size)
            self._note(self.masses[name], layer, chosen, logs, shares)

    def page_use(self, group: int) -> np.ndarray | None:
        return None

    def pages_to_give_back(self, group: int, length: int) -> np.ndarray:
        return np.empty(0, np.int64)

    def forked(self) -> "MassProbe":
        return MassProbe(self._layout, self._kinds)

    def cut(self, length: int) -> None:
        for digests in self._digests:
            digests.cut(length // self._layout.page_size)

    def _note(self, masses: Masses, layer: int, chosen: Selected, logs: np.ndarray, shares: np.ndarray) -> None:
        query_heads, group = len(logs), len(logs) // (len(chosen.offsets) - 1)
        selected, best, estimated = (np.empty(query_heads) for _ in range(3))
        for head in range(query_heads):
            kv_head = head // group
            pages = chosen.pages[chosen.offsets[kv_head] : chosen.offsets[kv_head + 1]]
            mine = slice(kv_head * group, (kv_head + 1) * group)
            selected[head] = shares[head, pages].sum()
            wanted = np.argsort(-shares[mine].max(axis=0), kind="stable")[: len(pages)]
            best[head] = shares[head, wanted].sum()
            left_out = np.exp(chosen.log_skipped[head] - np.logaddexp.reduce(logs[head, pages]))
            estimated[head] = left_out / (1 + left_out)
        masses.layers.append(layer)
        masses.selected.append(selected)
        masses.best.append(best)
        masses.estimated.append(estimated)


def page_logs(view: PageView, layer: int, query: Tensor, options: LayerOptions) -> np.ndarray:
    """float64 [query_heads, pages]: log of the sum of exp(score) over each page's keys; query [query_heads, dim]."""
    layout = view.layout
    rows = LayerRows.of(view.arena, layout, layer)
    keys = rows.pages(torch.from_numpy(view.blocks.astype(np.int64)), torch.float32)[:, :, 0]
    num_pages, kv_heads, page_size, dim = keys.shape
    folded = query.float().view(kv_heads, -1, dim)
    scores = torch.einsum("hgd,phsd->hgps", folded, keys).reshape(len(query), num_pages * page_size)
    scores = scores * (dim**-0.5 if options.scale is None else options.scale)
    scores[:, view.num_tokens :] = -torch.inf
    return torch.logsumexp(scores.view(len(query), num_pages, page_size).double(), dim=2).numpy()
