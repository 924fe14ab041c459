"""Attention by the native kernels, straight from the blocks of a pool in host memory: no gather, no padding, and bits
that depend on nothing but a sequence's own rows. Where the bytes lie elsewhere, the reference does the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.apart import Apart, plain_sequences
from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions, Plan
from kvpager.attention.native_call import NativeCall
from kvpager.attention.reference import ReferencePlan, check_packed
from kvpager.attention.streamed import StreamedPlan
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.step import StepBatch
from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.native_rows import write_rows
from kvpager.tiers.rows import cache_layer

_MAX_HEAD_DIM = 256


def why_not(layout: KVLayout | None) -> str:
    """Why the native kernels can't serve ``layout``; empty where they can."""
    if native.module() is None:
        return native.why_not()
    widest = 0 if layout is None else max(group.head_dim for group in layout.groups)
    return f"head_dim {widest} is over {_MAX_HEAD_DIM}" if widest > _MAX_HEAD_DIM else ""


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What the kernels are given for a step whose pages are all plain lists of blocks: per layer its rows and its
    group, per group where its tokens go and what its sequences see."""

    caches: list[Any]  # [layers] CacheLayer
    group_of: list[int]  # [layers]
    slots: list[Any]  # [groups] TokenSlots
    plans: list[Any]  # [groups] AttentionPlan


class CpuBackend:
    name = "cpu"

    def __init__(self) -> None:
        module = native.module()
        if module is None:
            raise ConfigError(f"no native kernels: {native.why_not()}")
        self._native = module
        self._layers: dict[tuple[int, int, KVLayout], list[Any]] = {}

    def plan(self, batch: StepBatch, arena: Arena) -> Plan:
        if arena.device != "cpu":
            return ReferencePlan(batch, arena)
        key = (arena.address, arena.num_blocks, batch.layout)
        if key not in self._layers:  # the pool was resized, or is another one
            layers = [cache_layer(self._native, arena, batch.layout, layer) for layer in range(batch.layout.layers)]
            self._layers = {key: layers}
        return CpuPlan(self._native, batch, arena, self._layers[key])


class CpuPlan:
    """One step: its sequences as the kernels take them, per layer group."""

    def __init__(self, module: ModuleType, batch: StepBatch, arena: Arena, layers: list[Any]) -> None:
        self._native = module
        self._batch = batch
        self._layers = layers
        self._places = batch.layout.places
        groups = range(batch.layout.num_groups)
        self._apart: Apart | None = None
        if Apart.is_needed(batch):
            self._apart = Apart(batch, arena)
            self._streamed = StreamedPlan(module, batch, self._apart.views, layers)
            plain = plain_sequences(batch, self._apart)
            self._rows = [torch.from_numpy(_packed_rows(batch, sequences)) for sequences in plain]
            self._plans = [_group_plan(module, batch, group, arena.num_blocks, plain[group]) for group in groups]
        else:
            self._plans = [_group_plan(module, batch, group, arena.num_blocks) for group in groups]
        slots, page_size = batch.positions() % batch.layout.page_size, batch.layout.page_size
        self._slots = [
            module.TokenSlots(batch.token_blocks(group), slots, arena.num_blocks, page_size) for group in groups
        ]

    def plain(self) -> PlainStep | None:
        """For whoever runs all layers in one call; None where some sequences are attended to one by one."""
        if self._apart is not None:
            return None
        return PlainStep(self._layers, [place.group for place in self._places], self._slots, self._plans)

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        check_packed(self._batch, layer, q, k, v, options)
        group = self._places[layer].group
        write_rows(self._native, self._layers[layer], self._slots[group], k, v)
        if self._apart is None:
            return attend(self._plans[group], self._layers[layer], q, options)
        out = torch.empty(q.shape, dtype=q.dtype)
        rows = self._rows[group]
        if len(rows):
            out[rows] = attend(self._plans[group], self._layers[layer], q[rows], options)
        self._apart.attend(layer, q, out, options, self._streamed.attend)
        return out


def _packed_rows(batch: StepBatch, sequences: np.ndarray) -> np.ndarray:
    """int64, ascending: which tokens of the batch are theirs."""
    owners = np.repeat(np.arange(batch.num_sequences), batch.query_lengths)
    return np.flatnonzero(np.isin(owners, sequences))


def _group_plan(
    module: ModuleType, batch: StepBatch, group: int, num_blocks: int, sequences: np.ndarray | None = None
) -> Any:
    """``sequences``: some of the batch, ascending; default: all."""
    page_size, window = batch.layout.page_size, batch.layout.groups[group].window
    chosen = range(batch.num_sequences) if sequences is None else sequences.tolist()
    starts, stops = batch.starts.tolist(), batch.stops.tolist()
    tables = [
        batch.tables[group][s][first_visible_page(starts[s], window, page_size) : batch.layout.num_pages(stops[s])]
        for s in chosen
    ]
    lengths = batch.query_lengths if sequences is None else batch.query_lengths[sequences]
    return module.AttentionPlan(
        query_offsets=np.concatenate([[0], np.cumsum(lengths)]),
        starts=batch.starts if sequences is None else batch.starts[sequences],
        table_offsets=np.cumsum([0, *map(len, tables)]),
        blocks=np.concatenate(tables) if tables else np.empty(0, np.int32),
        window=window or 0,
        page_size=page_size,
        num_blocks=num_blocks,
    )


def attend(plan: Any, layer: Any, q: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
    """``plan`` and ``layer``: the native AttentionPlan and CacheLayer. q [tokens, query_heads, head_dim], any strides.
    Returns the same shape and dtype; options as for Plan.run."""
    out = torch.empty(q.shape, dtype=q.dtype)
    call = NativeCall.of(plan, layer, q, out, options, None)
    plan.run(*call.arguments)
    return out


def attend_partly(plan: Any, layer: Any, q: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> tuple[Tensor, Tensor]:
    """Attention to some of the pages only: out in fp32, and the log of the sum of exp(score) [tokens, query_heads],
    -inf with an out of 0 where nothing is seen. ``options.sinks`` join the sum: give them to one part only."""
    out, lse = torch.empty(q.shape, dtype=torch.float32), torch.empty(q.shape[:2], dtype=torch.float32)
    call = NativeCall.of(plan, layer, q, out, options, lse)
    plan.run(*call.arguments)
    return out, lse


def merge_partials(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The attention to all pages, from parts of it over different pages, as attend_partly returns them: each part
    weighs exp(its lse - the whole's). Can be merged on with others."""
    lses = torch.stack([lse for _, lse in parts])
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - lse.masked_fill(lse == -torch.inf, 0.0))
    return torch.stack([out for out, _ in parts]).mul_(weights[..., None]).sum(0), lse
