"""Attention to some pages of a sequence, whatever they are and wherever they lie: for states that choose pages."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_view import PageView
from kvpager.attention.parts import window_of
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
    module: Any = native.module()
    out = torch.empty(q.shape, dtype=torch.float32)
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    segments = Segments(module, view, pages)
    native_layer = cache_layer(module, view.arena, view.layout, layer)
    segments.attend(layer, native_layer, q, out, options, lambda request: window_of(view).fetch(request), lse)
    return out, lse
