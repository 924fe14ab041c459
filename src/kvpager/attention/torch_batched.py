"""Attention in plain torch, batched over sequences: the fall-back where no native kernel works. Any torch device.

Decoding sequences (one new token each) of similar length are gathered together into one padded tensor and attended by
one call, so that a step costs a few torch calls per layer, not a few per sequence; the others go one by one. Plain
softmax attention is torch's scaled_dot_product_attention in the dtype of the cache, the same arithmetic as Hugging
Face models use by default; what that function does not have (soft-cap, sinks) is computed in fp32 as in reference.py. A
quantized cache is read in the dtype of the queries, where that holds its values exactly.

Query heads that share a KV head are folded into one matrix, [KV heads, group], so that K and V are read once.
Padding and unused slots are overwritten with zeros after the gather: what lies there may be NaN, and 0 x NaN is NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvpager.attention.apart import Apart, plain_sequences
from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions
from kvpager.attention.gathered import gather_pages
from kvpager.attention.page_view import PageView
from kvpager.attention.reference import ReferencePlan, check_packed, gather, hidden_keys
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.step import StepBatch
from kvpager.memory.arena import Arena
from kvpager.tiers.rows import FLOAT_DTYPE, LayerRows

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
    bias: Tensor | None  # [S, 1, 1, L] -inf where the query must not look, else 0; None if it sees every slot
    empty: tuple[Tensor, Tensor]  # (sequence, slot) pairs behind the last token: to be zeroed


class TorchPlan(ReferencePlan):
    """ReferencePlan that leaves out decoding sequences of similar length, and attends to these in buckets."""

    def __init__(self, batch: StepBatch, arena: Arena) -> None:
        plain = plain_sequences(batch, Apart(batch, arena) if Apart.is_needed(batch) else None)
        decodes = [each[batch.query_lengths[each] == 1] for each in plain]
        members = [_bucket_members(batch, group, each) for group, each in enumerate(decodes)]
        alone = [
            np.setdiff1d(each, np.concatenate(own)) if own else each for each, own in zip(plain, members, strict=True)
        ]
        super().__init__(batch, arena, alone)
        self._buckets = [
            [_make_bucket(batch, number, each, self._index) for each in group] for number, group in enumerate(members)
        ]

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        check_packed(self._batch, layer, q, k, v, options)
        group = self._layout.places[layer].group
        rows = LayerRows.of(self._arena, self._layout, layer)
        rows.write(self._places[group], k, v)
        out = torch.empty_like(q)
        is_plain = _is_plain(q, rows.exact_dtypes, options)
        if is_plain:
            self._attend_plain(rows, group, q, out, options)
        else:
            self._attend_spans(rows, group, q, out, options)
        decode = _decode_plain if is_plain else _decode
        for bucket in self._buckets[group]:
            out[bucket.queries] = decode(q[bucket.queries], rows, bucket, options).to(q.dtype)
        self._attend_apart(layer, q, out, options)
        return out

    def _attend_plain(self, rows: LayerRows, group: int, q: Tensor, out: Tensor, options: LayerOptions) -> None:
        """The spans that are not in a bucket, one call each, without padding: as a model alone would compute them."""
        window = self._layout.groups[group].window
        for span in self._spans[group]:
            keys, values = gather(rows, span, q.dtype)
            queries = q[span.query_start : span.query_stop]
            out[span.query_start : span.query_stop] = _plain(
                queries, keys, values, span.position, span.first_key, window, options
            )

    def _attend_view(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor:
        """As ReferencePlan does it, or like the others where torch's own attention serves."""
        seen = view.seen()
        exact_dtypes = LayerRows.of(self._arena, self._layout, layer).exact_dtypes
        if not view.is_dense(seen) or not _is_plain(q, exact_dtypes, options):
            return super()._attend_view(layer, view, q, options)
        keys, values, _ = gather_pages(view, layer, seen, q.dtype)
        first_key = int(seen[0]) * self._layout.page_size
        return _plain(q, keys, values, view.start, first_key, self._layout.groups[view.group].window, options)


def _is_plain(q: Tensor, exact_dtypes: tuple[torch.dtype, ...], options: LayerOptions) -> bool:
    return options.softcap is None and options.sinks is None and q.dtype in exact_dtypes


def _plain(
    q: Tensor, keys: Tensor, values: Tensor, position: int, first_key: int, window: int | None, options: LayerOptions
) -> Tensor:
    """q [queries, query_heads, dim] of one sequence from ``position`` on; keys and values [kv_heads, keys, dim]."""
    num_keys = keys.shape[1]
    # Without anything before them and no window, the mask is the square causal one that torch knows.
    is_square = 1 < len(q) == num_keys and (window is None or num_keys <= window)
    mask = None
    if not is_square:
        hidden = hidden_keys(len(q), num_keys, position, first_key, window, q.device)
        mask = None if hidden is None else ~hidden
    found = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        mask,
        is_causal=is_square,
        scale=options.scale,
        enable_gqa=True,
    )
    return found[0].transpose(0, 1)


def _first_pages(batch: StepBatch, group: int, members: np.ndarray) -> np.ndarray:
    page_size, window = batch.layout.page_size, batch.layout.groups[group].window
    return np.array([first_visible_page(p, window, page_size) for p in batch.starts[members].tolist()], np.int64)


def _bucket_members(batch: StepBatch, group: int, decodes: np.ndarray) -> list[np.ndarray]:
    """Cuts the decoding sequences into runs of similar length; one alone is left out: it needs no padding."""
    pages = batch.starts[decodes] // batch.layout.page_size + 1 - _first_pages(batch, group, decodes)
    order = np.argsort(pages, kind="stable")
    pages = pages[order]
    members, at = [], 0
    while at < len(order):
        stop = at + 1
        while stop < len(order) and _belongs(int(pages[at]), int(pages[stop]), stop + 1 - at):
            stop += 1
        if stop - at > 1:
            members.append(decodes[order[at:stop]])
        at = stop
    return members


def _make_bucket(batch: StepBatch, group: int, members: np.ndarray, index: Callable[[np.ndarray], Tensor]) -> _Bucket:
    """The sequences ``members`` of the batch, the longest last."""
    page_size, window = batch.layout.page_size, batch.layout.groups[group].window
    first, position = _first_pages(batch, group, members), batch.starts[members]
    width = int(position[-1] // page_size + 1 - first[-1])
    lists = []
    for at, page, last in zip(members.tolist(), first.tolist(), (position // page_size).tolist(), strict=True):
        ids = batch.tables[group][at][page : last + 1]
        lists.append(np.concatenate([ids, np.repeat(ids[:1], width - len(ids))]))
    keys = first[:, None] * page_size + np.arange(width * page_size)
    unused = keys > position[:, None]
    hidden = unused if window is None else unused | (keys <= position[:, None] - window)
    rows, slots = np.nonzero(unused)
    return _Bucket(
        queries=index(batch.offsets()[members]),
        blocks=index(np.concatenate(lists)),
        bias=_bias(hidden, batch.layout.dtype).to(index(rows).device) if hidden.any() else None,
        empty=(index(rows), index(slots)),
    )


def _belongs(shortest: int, candidate: int, members: int) -> bool:
    return candidate <= max(shortest * _MAX_PADDING, shortest + 2) and candidate * members <= _MAX_PAGES


def _bias(hidden: np.ndarray, dtype: str) -> Tensor:
    bias = torch.zeros(hidden.shape, dtype=FLOAT_DTYPE.get(dtype, torch.float32))
    return bias.masked_fill_(torch.from_numpy(hidden), -math.inf)[:, None, None]


def _gather_bucket(rows: LayerRows, bucket: _Bucket, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of a bucket, [S, kv_heads, L, dim] each, zeros behind the last token."""
    _, kv_heads, _, page_size, dim = rows.stored.shape
    num_sequences = len(bucket.queries)
    gathered = rows.pages(bucket.blocks, dtype).view(num_sequences, -1, kv_heads, 2, page_size, dim)
    both = gathered.permute(3, 0, 2, 1, 4, 5).reshape(2, num_sequences, kv_heads, -1, dim)
    both[:, bucket.empty[0], :, bucket.empty[1]] = 0.0
    return both[0], both[1]


def _decode_plain(q: Tensor, rows: LayerRows, bucket: _Bucket, options: LayerOptions) -> Tensor:
    """q [S, query_heads, dim] -> the same shape; one query per sequence."""
    keys, values = _gather_bucket(rows, bucket, q.dtype)
    folded = q.view(q.shape[0], keys.shape[1], -1, q.shape[2])
    bias = None if bucket.bias is None else bucket.bias.to(q.dtype)
    found = scaled_dot_product_attention(folded, keys, values, bias, scale=options.scale)
    return found.reshape(q.shape)


def _decode(q: Tensor, rows: LayerRows, bucket: _Bucket, options: LayerOptions) -> Tensor:
    """As _decode_plain, in fp32, with soft-cap and sinks."""
    num_sequences, _, dim = q.shape
    keys, values = _gather_bucket(rows, bucket, torch.float32)
    kv_heads = keys.shape[1]
    folded = q.float().view(num_sequences, kv_heads, -1, dim)
    scale = dim**-0.5 if options.scale is None else options.scale
    scores = torch.matmul(folded, keys.transpose(2, 3)) * scale  # [S, kv_heads, query_heads / kv_heads, L]
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if bucket.bias is not None:
        scores = scores + bucket.bias.float()
    if options.sinks is not None:
        sinks = options.sinks.float().view(1, kv_heads, -1, 1).expand(num_sequences, -1, -1, 1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, values).view(q.shape)
