"""One query over a page list of its own for every KV head, by address: native, or slowly where there are no kernels."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention import selective_reference as reference
from kvpager.attention.backend import LayerOptions
from kvpager.memory.layout import KVLayout

_MAX_HEAD_DIM = 256


def kernels_for(layout: KVLayout, layer: int) -> ModuleType | None:
    """The native kernels, where they are here and can serve ``layer``."""
    is_wide = layout.groups[layout.places[layer].group].head_dim > _MAX_HEAD_DIM
    return None if is_wide else native.module()


def dtype_name(rows: Tensor) -> str:
    """As the native kernels know it; they refuse what they don't know."""
    return str(rows.dtype).removeprefix("torch.")


def part_rows(kernels: Any, layout: KVLayout, layer: int) -> Any:
    """A CacheLayer that says how the rows of ``layer`` lie in its part of a page, wherever that is."""
    group = layout.groups[layout.places[layer].group]
    slot = group.head_dim * layout.item_bytes
    return kernels.CacheLayer(
        address=layout.block_stride,  # not used: every page comes with its own
        num_blocks=1,
        block_stride=layout.block_stride,
        head_stride=2 * layout.page_size * slot,
        half_stride=layout.page_size * slot,
        slot_stride=slot,
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        page_size=layout.page_size,
        dtype=layout.dtype,
    )


def attend_head_pages(
    layout: KVLayout,
    layer: int,
    q: Tensor,
    offsets: np.ndarray,
    addresses: np.ndarray,
    last_tokens: int,
    options: LayerOptions,
) -> tuple[Tensor, Tensor]:
    """q [query_heads, head_dim], contiguous rows. ``addresses`` int64 of the layer's parts, of KV head h those from
    ``offsets[h]`` (int64) to ``offsets[h + 1]``, in order; the last page of every list holds ``last_tokens``.

    Returns out [query_heads, head_dim] and the log of the sum of exp(score) [query_heads], -inf with an out of 0 where
    nothing is seen; both float32. ``options.sinks`` join the sum: give them to one part only.
    """
    kernels = kernels_for(layout, layer)
    if kernels is None:
        return _attend_slowly(layout, layer, q, offsets, addresses, last_tokens, options)
    out, lse = torch.empty(q.shape), torch.empty(q.shape[0])
    sinks = None if options.sinks is None else options.sinks.to(device="cpu", dtype=torch.float32).contiguous()
    kernels.attend_head_pages(
        part_rows(kernels, layout, layer),
        offsets,
        addresses,
        last_tokens,
        q.shape[0],
        q.data_ptr(),
        q.stride(0),
        dtype_name(q),
        out.data_ptr(),
        out.stride(0),
        dtype_name(out),
        q.shape[1] ** -0.5 if options.scale is None else options.scale,
        options.softcap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
        lse.data_ptr(),
    )
    return out, lse


def _attend_slowly(
    layout: KVLayout,
    layer: int,
    q: Tensor,
    offsets: np.ndarray,
    addresses: np.ndarray,
    last_tokens: int,
    options: LayerOptions,
) -> tuple[Tensor, Tensor]:
    group = layout.groups[layout.places[layer].group]
    shape = group.kv_heads, layout.page_size, group.head_dim
    held = torch.empty(len(addresses), group.kv_heads, 2, layout.page_size, group.head_dim)
    for at, address in enumerate(addresses.tolist()):
        held[at] = reference.rows_at(address, shape, layout.dtype)
    bounds = offsets.tolist()
    lists = [held[bounds[head] : bounds[head + 1], head] for head in range(group.kv_heads)]
    return reference.attend(q, lists, last_tokens, options)
