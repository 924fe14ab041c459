"""How much of the attention of some queries falls on each page: reads keys, never values.

Each query row (a query and one of its heads) shares a mass of 1 out among the pages it is measured over: the softmax of
its scores, summed page by page. A logit without a value (``LayerOptions.sinks``) takes no part. The native kernel reads
every key once; the slow, obvious version beside it is what it is measured against, and serves where there are no
kernels, on other devices, and for quantized keys.
"""

import ctypes
import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention import cpu
from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_view import PageView
from kvpager.tiers.rows import FLOAT_DTYPE, LayerRows

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
        keys = _keys(view, layer, pages)
        first_keys = torch.as_tensor(pages * layout.page_size, device=keys.device)
        window = layout.groups[view.group].window
        return slow_page_masses(keys, first_keys, q, position, step, window, options).cpu().numpy()
    return _native_masses(kernels, view, layer, pages, q, position, step, options)


def slow_page_masses(
    keys: Tensor,
    first_keys: Tensor,
    q: Tensor,
    position: int,
    step: int,
    window: int | None,
    options: LayerOptions,
) -> Tensor:
    """``page_masses`` of keys [pages, kv_heads, page_size, head_dim], the first of each page at position
    ``first_keys`` [pages]."""
    num_pages, kv_heads, page_size, dim = keys.shape
    queries, query_heads, _ = q.shape
    rows = q.float().view(queries, kv_heads, query_heads // kv_heads, dim)
    scores = torch.einsum("nhgd,phsd->hngps", rows, keys.float())
    scores = scores * (dim**-0.5 if options.scale is None else options.scale)
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    at = first_keys[:, None] + torch.arange(page_size, device=keys.device)
    query = (position + step * torch.arange(queries, device=keys.device)).view(queries, 1, 1, 1)
    is_hidden = at > query if window is None else (at > query) | (at <= query - window)
    scores = scores.masked_fill(is_hidden, -math.inf).flatten(-2)
    weights = torch.softmax(scores, dim=-1).masked_fill(torch.isneginf(scores), 0.0)
    rows_of_head = queries * query_heads // kv_heads
    return weights.reshape(kv_heads, rows_of_head, num_pages, page_size).sum(dim=(1, 3))


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


def _keys(view: PageView, layer: int, pages: np.ndarray) -> Tensor:
    """float32 [pages, kv_heads, page_size, head_dim] on the arena's device; copies."""
    layout, group = view.layout, view.layout.groups[view.group]
    blocks = view.blocks[pages]
    shape = (group.kv_heads, 2, layout.page_size, group.head_dim)
    keys = torch.empty((len(pages), *shape), device=view.arena.device)
    is_resident = torch.as_tensor(blocks >= 0, device=keys.device)
    resident = torch.as_tensor(blocks[blocks >= 0].astype(np.int64), device=keys.device)
    keys[is_resident] = LayerRows.of(view.arena, layout, layer).pages(resident, torch.float32)
    _, size = view.part(layer) if (blocks < 0).any() else (0, 0)
    for at in np.flatnonzero(blocks < 0).tolist():
        address = int(view.addresses(layer, pages[at : at + 1])[0])
        part = torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=FLOAT_DTYPE[layout.dtype])
        keys[at] = part.view(shape)
    return keys[:, :, 0]
