"""How much of the attention of some queries falls on each page: reads keys, never values.

Each query row (a query and one of its heads) shares a mass of 1 out among the pages it is measured over: the softmax of
its scores, summed page by page. A logit without a value (``LayerOptions.sinks``) takes no part. The native kernel reads
every key once; the slow, obvious version beside it is what it is measured against, and serves where there are no
kernels, on other devices, and for quantized keys.
"""

import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention import cpu
from kvpager.attention.backend import LayerOptions
from kvpager.attention.gathered import gather_pages
from kvpager.attention.page_view import PageView
from kvpager.tiers.rows import FLOAT_DTYPE

_DTYPE_NAME = {dtype: name for name, dtype in FLOAT_DTYPE.items()}


def is_readable(view: PageView, pages: np.ndarray) -> np.ndarray:
    """bool: which of ``pages`` lie where their keys can be read in place, in blocks or in host memory."""
    is_here = view.blocks[pages] >= 0
    return is_here if view.rest is None else is_here | (view.rest.address[pages] != 0)


def page_masses(
    view: PageView, layer: int, pages: np.ndarray, q: Tensor, position: int, step: int, options: LayerOptions
) -> np.ndarray:
    """float32 [kv_heads, pages]: mass of each of ``pages``, summed over queries and the query heads of a KV head.

    ``pages`` int64, readable ones; ``q`` [queries, query_heads, head_dim] at ``position``, ``position + step``, ...;
    keys behind a query, or not in its window, are not seen. A query row that sees nothing adds nothing.
    """
    layout = view.layout
    kernels = native.module()
    if kernels is None or view.arena.device != "cpu" or cpu.why_not(layout) or layout.is_quantized:
        keys, _, positions = gather_pages(view, layer, pages, torch.float32)
        places = torch.as_tensor(pages, device=keys.device)
        window = layout.groups[view.group].window
        of_keys = slow_key_masses(keys, positions, q, position, step, window, options)
        masses = torch.zeros(len(keys), len(pages), device=keys.device)
        masses.index_add_(1, torch.searchsorted(places, positions // layout.page_size), of_keys)
        return masses.cpu().numpy()
    return _native_masses(kernels, view, layer, pages, q, position, step, options)


def slow_key_masses(
    keys: Tensor, positions: Tensor, q: Tensor, position: int, step: int, window: int | None, options: LayerOptions
) -> Tensor:
    """float32 [kv_heads, keys]: the mass of each. ``keys`` float32 [kv_heads, keys, head_dim], ``positions`` [keys];
    otherwise as ``page_masses``."""
    kv_heads, _, dim = keys.shape
    queries, query_heads, _ = q.shape
    rows = q.float().view(queries, kv_heads, query_heads // kv_heads, dim)
    scores = torch.einsum("nhgd,hkd->hngk", rows, keys)
    scores = scores * (dim**-0.5 if options.scale is None else options.scale)
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    query = (position + step * torch.arange(queries, device=keys.device)).view(queries, 1, 1)
    is_hidden = positions > query if window is None else (positions > query) | (positions <= query - window)
    scores = scores.masked_fill(is_hidden, -math.inf)
    return torch.softmax(scores, dim=-1).masked_fill(torch.isneginf(scores), 0.0).sum(dim=(1, 2))


def _native_masses(
    kernels: ModuleType,
    view: PageView,
    layer: int,
    pages: np.ndarray,
    q: Tensor,
    position: int,
    step: int,
    options: LayerOptions,
) -> np.ndarray:
    layout, group = view.layout, view.layout.groups[view.group]
    q = q if q.stride(2) == 1 else q.contiguous()
    out = np.empty((group.kv_heads, len(pages)), np.float32)
    kernels.page_masses(
        addresses=view.addresses(layer, pages),
        positions=pages.astype(np.int64) * layout.page_size,
        out=out,
        head_dim=group.head_dim,
        page_size=layout.page_size,
        dtype=layout.dtype,
        query_heads=q.shape[1],
        q=q.data_ptr(),
        q_token_stride=q.stride(0),
        q_head_stride=q.stride(1),
        q_dtype=_DTYPE_NAME[q.dtype],
        num_queries=q.shape[0],
        start=position,
        step=step,
        scale=group.head_dim**-0.5 if options.scale is None else options.scale,
        softcap=options.softcap or 0.0,
        window=group.window or 0,
    )
    return out
