"""Attention in plain torch, batched over sequences: the fall-back where no native kernel works. Any torch device.

Decoding sequences (one new token each) of similar length are gathered together into one padded tensor and scored by
one matrix product, so that a step costs a few torch calls per layer, not a few per sequence. Longer pieces go one by
one, as in reference.py, whose arithmetic this shares: fp32 scores, exact softmax.

Padding and unused slots are overwritten with zeros after the gather: what lies there may be NaN, and 0 x NaN is NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions
from kvpager.attention.reference import ReferencePlan, check_packed
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.step import StepBatch
from kvpager.memory.arena import Arena
from kvpager.tiers.rows import layer_view

_MAX_PADDING = 1.25  # a bucket's longest page list over its shortest
_MAX_PAGES = 1 << 14  # pages gathered at once


class TorchBackend:
    name = "torch"

    def plan(self, batch: StepBatch, arena: Arena) -> "TorchPlan":
        return TorchPlan(batch, arena)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Decoding sequences gathered together: S of them, P pages each, L = P * page_size slots each."""

    queries: Tensor  # [S] their places in the packed batch
    blocks: Tensor  # [S * P]; short lists are filled up with their first block
    hidden: Tensor | None  # [S, 1, 1, L] true where the query must not look; None if it sees every slot
    empty: tuple[Tensor, Tensor]  # (sequence, slot) pairs behind the last token: to be zeroed


class TorchPlan(ReferencePlan):
    """ReferencePlan with its one-token spans taken out and gathered in buckets."""

    def __init__(self, batch: StepBatch, arena: Arena) -> None:
        super().__init__(batch, arena)
        decodes = np.flatnonzero(batch.query_lengths == 1)
        self._buckets = [_make_buckets(batch, g, decodes, self._index) for g in range(self._layout.num_groups)]
        for spans in self._spans:
            spans[:] = [span for span in spans if span.query_stop - span.query_start > 1]

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        check_packed(self._batch, layer, q, k, v)
        place = self._layout.places[layer]
        view = layer_view(self._arena, self._layout, layer)
        self._write(view, place.group, k, v)
        out = torch.empty_like(q)
        self._attend_spans(view, place.group, q, out, options)
        for bucket in self._buckets[place.group]:
            out[bucket.queries] = _decode(q[bucket.queries], view, bucket, options).to(q.dtype)
        return out


def _make_buckets(
    batch: StepBatch, group: int, decodes: np.ndarray, index: Callable[[np.ndarray], Tensor]
) -> list[_Bucket]:
    page_size, window = batch.layout.page_size, batch.layout.groups[group].window
    starts = batch.starts
    first = np.array([first_visible_page(int(p), window, page_size) for p in starts[decodes]], np.int64)
    pages = starts[decodes] // page_size + 1 - first
    order = np.argsort(pages, kind="stable")
    offsets = batch.offsets()
    buckets, at = [], 0
    while at < len(order):
        stop = at + 1
        while stop < len(order) and _belongs(int(pages[order[at]]), int(pages[order[stop]]), stop + 1 - at):
            stop += 1
        members = order[at:stop]
        width = int(pages[members[-1]])
        lists = []
        for m in members.tolist():
            table = batch.tables[group][decodes[m]]
            ids = table[first[m] : first[m] + pages[m]]
            lists.append(np.concatenate([ids, np.repeat(ids[:1], width - len(ids))]))
        position = starts[decodes[members]]
        keys = first[members, None] * page_size + np.arange(width * page_size)
        unused = keys > position[:, None]
        hidden = unused if window is None else unused | (keys <= position[:, None] - window)
        rows, slots = np.nonzero(unused)
        buckets.append(
            _Bucket(
                queries=index(offsets[decodes[members]]),
                blocks=index(np.concatenate(lists)),
                hidden=torch.from_numpy(hidden[:, None, None]).to(index(rows).device) if hidden.any() else None,
                empty=(index(rows), index(slots)),
            )
        )
        at = stop
    return buckets


def _belongs(shortest: int, candidate: int, members: int) -> bool:
    return candidate <= max(shortest * _MAX_PADDING, shortest + 2) and candidate * members <= _MAX_PAGES


def _decode(q: Tensor, view: Tensor, bucket: _Bucket, options: LayerOptions) -> Tensor:
    """q [S, query_heads, dim] -> [S, query_heads, dim] in fp32; one query per sequence."""
    num_sequences, query_heads, dim = q.shape
    _, kv_heads, _, page_size, _ = view.shape
    gathered = view.index_select(0, bucket.blocks).view(num_sequences, -1, kv_heads, 2, page_size, dim)
    both = gathered.permute(3, 0, 2, 1, 4, 5).float().reshape(2, num_sequences, kv_heads, -1, dim)
    both[:, bucket.empty[0], :, bucket.empty[1]] = 0.0
    keys, values = both[0], both[1]  # [S, kv_heads, L, dim]
    folded = q.float().view(num_sequences, kv_heads, -1, dim)
    scale = dim**-0.5 if options.scale is None else options.scale
    scores = torch.matmul(folded, keys.transpose(2, 3)) * scale  # [S, kv_heads, query_heads / kv_heads, L]
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if bucket.hidden is not None:
        scores = scores.masked_fill(bucket.hidden, -math.inf)
    if options.sinks is not None:
        sinks = options.sinks.float().view(1, kv_heads, -1, 1).expand(num_sequences, -1, -1, 1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, values).view(num_sequences, query_heads, dim)
