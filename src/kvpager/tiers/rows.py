"""K and V rows in and out of blocks, as torch tensors. The one place that knows how a layer looks inside the arena."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena
from kvpager.memory.layout import KVLayout

TORCH_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def arena_bytes(arena: Arena) -> Tensor:
    """The arena as uint8 [num_blocks, block_stride]; shares its memory."""
    blocks = arena.blocks  # type: ignore[attr-defined]
    return blocks if isinstance(blocks, Tensor) else torch.from_numpy(blocks)


def layer_view(arena: Arena, layout: KVLayout, layer: int) -> Tensor:
    """One layer of every block: [num_blocks, kv_heads, 2 (K, V), page_size, head_dim], a strided view of the arena."""
    place = layout.places[layer]
    group = layout.groups[place.group]
    typed = arena_bytes(arena).view(TORCH_DTYPE[layout.dtype])
    rows = layout.page_size * group.head_dim
    offset = layout.slot_offset(place.group, place.index, 0, 0, 0) // layout.item_bytes
    return typed.as_strided(
        (arena.num_blocks, group.kv_heads, 2, layout.page_size, group.head_dim),
        (arena.block_stride // layout.item_bytes, 2 * rows, rows, group.head_dim, 1),
        offset,
    )


def cache_layer(native: ModuleType, arena: Arena, layout: KVLayout, layer: int) -> Any:
    """The same layer as the native kernels take it; ``native`` is their module. Borrows the arena's memory."""
    place = layout.places[layer]
    group = layout.groups[place.group]
    slot = group.head_dim * layout.item_bytes
    half = layout.page_size * slot
    return native.CacheLayer(
        address=arena.address + layout.slot_offset(place.group, place.index, 0, 0, 0),
        num_blocks=arena.num_blocks,
        block_stride=arena.block_stride,
        head_stride=2 * half,
        half_stride=half,
        slot_stride=slot,
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        page_size=layout.page_size,
        dtype=layout.dtype,
    )


class TorchRows:
    """Rows of one arena. Shapes are [layers, tokens, kv_heads, head_dim] for K and for V."""

    def __init__(self, arena: Arena, layout: KVLayout) -> None:
        self._arena = arena
        self._layout = layout

    def check_rows(self, k: object, v: object) -> int:
        shapes = {(group.kv_heads, group.head_dim) for group in self._layout.groups}
        if len(shapes) > 1:
            raise ConfigError("layers of this layout differ in head shape: rows can't be written as one tensor")
        heads, dim = shapes.pop()
        for name, rows in (("k", k), ("v", v)):
            if not isinstance(rows, Tensor):
                raise ConfigError(f"{name} must be a torch tensor, not {type(rows).__name__}")
            expected = (self._layout.layers, rows.shape[1] if rows.dim() == 4 else "tokens", heads, dim)
            if tuple(rows.shape) != expected:
                raise ConfigError(
                    f"{name} has shape {tuple(rows.shape)}, expected [layers, tokens, kv_heads, dim] {expected}"
                )
            if rows.dtype != TORCH_DTYPE[self._layout.dtype]:
                raise ConfigError(f"{name} is {rows.dtype}, the cache holds {self._layout.dtype}: convert it first")
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        if k.shape != v.shape:
            raise ConfigError(f"k has {k.shape[1]} tokens, v has {v.shape[1]}")
        return int(k.shape[1])

    def write(self, layer: int, blocks: np.ndarray, slots: np.ndarray, k: object, v: object) -> None:
        """Token t of ``k`` and ``v`` ([tokens, kv_heads, head_dim]) goes to slot ``slots[t]`` of ``blocks[t]``."""
        view = layer_view(self._arena, self._layout, layer)
        where, slot = self._index(blocks), self._index(slots)
        view[where, :, 0, slot] = k  # type: ignore[assignment]
        view[where, :, 1, slot] = v  # type: ignore[assignment]

    def read(self, layers: list[int], blocks: list[np.ndarray], slots: np.ndarray) -> tuple[Tensor, Tensor]:
        """K and V of the given layers, ``blocks[i]`` being the block of each token for ``layers[i]``; copies."""
        slot = self._index(slots)
        views = [layer_view(self._arena, self._layout, layer) for layer in layers]
        where = [self._index(ids) for ids in blocks]
        k = torch.stack([view[ids, :, 0, slot] for view, ids in zip(views, where, strict=True)])
        v = torch.stack([view[ids, :, 1, slot] for view, ids in zip(views, where, strict=True)])
        return k, v

    def _index(self, ids: np.ndarray) -> Tensor:
        return torch.as_tensor(ids.astype(np.int64), device=self._arena.device)
