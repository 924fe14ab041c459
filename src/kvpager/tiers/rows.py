"""K and V rows in and out of blocks, as torch tensors. The one place that knows how a layer looks inside the arena."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena
from kvpager.memory.layout import SCALE_BYTES, KVLayout
from kvpager.tiers import quantized
from kvpager.tiers.native_rows import can_write, write_rows
from kvpager.tiers.quantized import CODES, TokenPlaces

FLOAT_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TORCH_DTYPE = FLOAT_DTYPE | {name: code.dtype for name, code in CODES.items()}


def arena_bytes(arena: Arena) -> Tensor:
    """The arena as uint8 [num_blocks, block_stride]; shares its memory."""
    blocks = arena.blocks  # type: ignore[attr-defined]
    return blocks if isinstance(blocks, Tensor) else torch.from_numpy(blocks)


def layer_view(arena: Arena, layout: KVLayout, layer: int) -> Tensor:
    """One layer of every block: [num_blocks, kv_heads, 2 (K, V), page_size, head_dim], a strided view of the arena.

    In a quantized layout these are stored bytes, which mean nothing without ``scale_view``.
    """
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


def scale_view(arena: Arena, layout: KVLayout, layer: int) -> Tensor:
    """The scales of one layer of every block of a quantized layout: float32 [num_blocks, kv_heads, 2 (K, V)]."""
    place = layout.places[layer]
    heads = layout.groups[place.group].kv_heads
    offset = layout.scale_offset(place.group, place.index, 0, 0) // SCALE_BYTES
    strides = (arena.block_stride // SCALE_BYTES, 2, 1)
    return arena_bytes(arena).view(torch.float32).as_strided((arena.num_blocks, heads, 2), strides, offset)


@dataclass(frozen=True, slots=True)
class LayerRows:
    """One layer of every block, as values: reads and writes go through the scales where there are any.

    ``stored`` and ``scales`` are what ``layer_view`` and ``scale_view`` give.
    """

    layout: KVLayout
    stored: Tensor
    scales: Tensor | None

    @classmethod
    def of(cls, arena: Arena, layout: KVLayout, layer: int) -> "LayerRows":
        scales = scale_view(arena, layout, layer) if layout.is_quantized else None
        return cls(layout, layer_view(arena, layout, layer), scales)

    @property
    def exact_dtypes(self) -> tuple[torch.dtype, ...]:
        """Types that hold every value of these rows."""
        return (self.stored.dtype,) if self.scales is None else (torch.float32, torch.bfloat16)

    def write(self, places: TokenPlaces, k: Tensor, v: Tensor) -> None:
        """``k`` and ``v`` [tokens, kv_heads, head_dim]."""
        if self.scales is not None:
            quantized.write(CODES[self.layout.dtype], self.stored, self.scales, places, k, v)
            return
        self.stored[places.blocks, :, 0, places.slots] = k
        self.stored[places.blocks, :, 1, places.slots] = v

    def pages(self, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """Copies of the pages in ``blocks``: [pages, kv_heads, 2, page_size, head_dim] in ``dtype``."""
        pages = self.stored.view(_raw(self.stored)).index_select(0, blocks).view(self.stored.dtype)
        if self.scales is None:
            return pages.to(dtype)
        return quantized.values(pages, self.scales[blocks][..., None], dtype)

    def tokens(self, blocks: Tensor, slots: Tensor) -> Tensor:
        """Copies of single slots: [tokens, kv_heads, 2, head_dim]; float32 where the rows are quantized."""
        rows = self.stored.view(_raw(self.stored))[blocks, :, :, slots].view(self.stored.dtype)
        return rows if self.scales is None else quantized.values(rows, self.scales[blocks], torch.float32)


def _raw(stored: Tensor) -> torch.dtype:
    """A type of the same size that torch can index: it can't index float8 everywhere."""
    return torch.uint8 if stored.element_size() == 1 else stored.dtype


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
        scales=arena.address + layout.scale_offset(place.group, place.index, 0, 0) if layout.is_quantized else 0,
    )


def writable_dtypes(layout: KVLayout) -> tuple[torch.dtype, ...]:
    """What rows may be given in: the cache's own type; any float type where it quantizes."""
    return tuple(FLOAT_DTYPE.values()) if layout.is_quantized else (TORCH_DTYPE[layout.dtype],)


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
            if rows.dtype not in writable_dtypes(self._layout):
                raise ConfigError(f"{name} is {rows.dtype}, the cache holds {self._layout.dtype}: convert it first")
        assert isinstance(k, Tensor)
        assert isinstance(v, Tensor)
        if k.shape != v.shape:
            raise ConfigError(f"k has {k.shape[1]} tokens, v has {v.shape[1]}")
        if k.dtype != v.dtype:
            raise ConfigError(f"k is {k.dtype} and v is {v.dtype}: give both in one dtype")
        return int(k.shape[1])

    def write(self, layer: int, blocks: np.ndarray, slots: np.ndarray, k: object, v: object) -> None:
        """Token t of ``k`` and ``v`` ([tokens, kv_heads, head_dim]) goes to slot ``slots[t]`` of ``blocks[t]``."""
        kernels = native.module()
        if kernels is not None and self._arena.device == "cpu" and can_write(self._layout, layer):
            assert isinstance(k, Tensor)
            assert isinstance(v, Tensor)
            token_slots = kernels.TokenSlots(blocks, slots, self._arena.num_blocks, self._layout.page_size)
            write_rows(kernels, cache_layer(kernels, self._arena, self._layout, layer), token_slots, k, v)
            return
        places = TokenPlaces.of(blocks, slots, self._arena.device)
        LayerRows.of(self._arena, self._layout, layer).write(places, k, v)  # type: ignore[arg-type]

    def read(self, layers: list[int], blocks: list[np.ndarray], slots: np.ndarray) -> tuple[Tensor, Tensor]:
        """K and V of the given layers, ``blocks[i]`` being the block of each token for ``layers[i]``; copies."""
        slot = self._index(slots)
        both = torch.stack(
            [
                LayerRows.of(self._arena, self._layout, layer).tokens(self._index(ids), slot)
                for layer, ids in zip(layers, blocks, strict=True)
            ]
        )
        return both[..., 0, :].contiguous(), both[..., 1, :].contiguous()

    def _index(self, ids: np.ndarray) -> Tensor:
        return torch.as_tensor(ids.astype(np.int64), device=self._arena.device)
