"""Attention to some pages of a sequence, whatever they are and wherever they lie: for states that choose pages."""

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention import cpu
from kvpager.attention.backend import LayerOptions
from kvpager.attention.gathered import gather_pages
from kvpager.attention.page_view import PageView
from kvpager.attention.parts import window_of
from kvpager.attention.reference import attend_partly, hidden_at
from kvpager.attention.segments import Segments
from kvpager.tiers.rows import cache_layer


def attend_pages(
    view: PageView, layer: int, q: Tensor, pages: np.ndarray, options: LayerOptions
) -> tuple[Tensor, Tensor]:
    """q [queries, query_heads, head_dim] of the view's sequence to ``pages``, ascending page numbers: causal, and as
    far as the layer's window allows. Pages without a block are read through the step's staging window.

    Returns float32 [queries, query_heads, head_dim], and the log of the sum of exp(score) [queries, query_heads], -inf
    where nothing is seen (out is 0 there). ``options.sinks`` join the sum. Raises PagesLost.
    """
    module = native.module()
    if module is None or view.arena.device != "cpu" or cpu.why_not(view.layout):
        keys, values, positions = gather_pages(view, layer, pages, torch.float32)
        window = view.layout.groups[view.group].window
        hidden = hidden_at(view.queries, positions, view.start, window)
        return attend_partly(q, keys, values, hidden, options)
    out = torch.empty(q.shape, dtype=torch.float32)
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    segments = Segments(module, view, pages)
    native_layer = cache_layer(module, view.arena, view.layout, layer)
    segments.attend(layer, native_layer, q, out, options, lambda request: window_of(view).fetch(request), lse)
    return out, lse
