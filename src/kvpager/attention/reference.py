"""The slow, obvious attention that every other backend is measured against: exact softmax in fp32, any torch device.

Per sequence: gather its pages, cut off what is not a token of it (unused slots may hold anything, NaN included),
score, mask, softmax, weigh. MHA, GQA and MQA; sliding window; soft-cap; sinks. Pages without a block are gathered too,
from wherever they lie (gathered.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.apart import Apart, plain_sequences
from kvpager.attention.backend import DEFAULT_OPTIONS, LayerOptions
from kvpager.attention.gathered import gather_pages
from kvpager.attention.page_view import PageView
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.step import StepBatch
from kvpager.errors import ConfigError
from kvpager.memory.arena import Arena
from kvpager.tiers.quantized import TokenPlaces
from kvpager.tiers.rows import LayerRows, writable_dtypes

_MAX_SCORES = 1 << 24  # scores held at once per sequence: a long prefill is cut into rows of queries


class ReferenceBackend:
    name = "reference"

    def plan(self, batch: StepBatch, arena: Arena) -> "ReferencePlan":
        return ReferencePlan(batch, arena)


class ReferencePlan:
    """``alone[group]``: the plain sequences [S'] to attend to here (default: all); a subclass sees to the others."""

    def __init__(self, batch: StepBatch, arena: Arena, alone: list[np.ndarray] | None = None) -> None:
        self._batch = batch
        self._arena = arena
        self._layout = batch.layout
        slots = batch.positions() % self._layout.page_size
        self._places = [
            TokenPlaces.of(batch.token_blocks(group), slots, arena.device) for group in range(self._layout.num_groups)
        ]
        self._apart = Apart(batch, arena) if Apart.is_needed(batch) else None
        if alone is None:
            alone = plain_sequences(batch, self._apart)
        self._spans = [_group_spans(batch, group, each, self._index) for group, each in enumerate(alone)]

    def run(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions = DEFAULT_OPTIONS) -> Tensor:
        check_packed(self._batch, layer, q, k, v, options)
        group = self._layout.places[layer].group
        rows = LayerRows.of(self._arena, self._layout, layer)
        rows.write(self._places[group], k, v)
        out = torch.empty_like(q)
        self._attend_spans(rows, group, q, out, options)
        self._attend_apart(layer, q, out, options)
        return out

    def _attend_spans(self, rows: LayerRows, group: int, q: Tensor, out: Tensor, options: LayerOptions) -> None:
        window = self._layout.groups[group].window
        for span in self._spans[group]:
            keys, values = gather(rows, span, torch.float32)
            at_once = max(1, _MAX_SCORES // (q.shape[1] * keys.shape[1]))
            for first in range(span.query_start, span.query_stop, at_once):
                last = min(first + at_once, span.query_stop)
                position = span.position + first - span.query_start
                hidden = hidden_keys(last - first, span.num_keys, position, span.first_key, window, q.device)
                out[first:last] = attend(q[first:last], keys, values, hidden, options)

    def _attend_apart(self, layer: int, q: Tensor, out: Tensor, options: LayerOptions) -> None:
        if self._apart is not None:
            self._apart.attend(layer, q, out, options, self._attend_gathered)

    def _attend_gathered(
        self, layer: int, views: list[PageView], q: Tensor, out: Tensor, options: LayerOptions
    ) -> None:
        offsets = self._batch.offsets().tolist()
        for view in views:
            rows = slice(offsets[view.s], offsets[view.s + 1])
            out[rows] = self._attend_view(layer, view, q[rows], options)

    def _attend_view(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor:
        keys, values, positions = gather_pages(view, layer, view.seen(), torch.float32)
        window = self._layout.groups[view.group].window
        at_once = max(1, _MAX_SCORES // (q.shape[1] * keys.shape[1]))
        found = []
        for first, part in enumerate(torch.split(q, at_once)):
            hidden = hidden_at(len(part), positions, view.start + first * at_once, window)
            found.append(attend(part, keys, values, hidden, options))
        return torch.cat(found)

    def _index(self, ids: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(ids, np.int64), device=self._arena.device)


@dataclass(frozen=True, slots=True)
class _Span:
    """One sequence in one group: its queries in the packed batch, and the pages they see."""

    query_start: int
    query_stop: int
    position: int  # of the first query
    first_key: int  # position of the first slot of the first page
    num_keys: int  # slots from there to the last token
    blocks: Tensor  # [pages]


def _group_spans(
    batch: StepBatch, group: int, sequences: np.ndarray, index: Callable[[np.ndarray], Tensor]
) -> list[_Span]:
    page_size, window = batch.layout.page_size, batch.layout.groups[group].window
    offsets, starts, stops = batch.offsets().tolist(), batch.starts.tolist(), batch.stops.tolist()
    spans = []
    for s in sequences.tolist():
        first_page = first_visible_page(starts[s], window, page_size)
        first_key = first_page * page_size
        blocks = index(batch.tables[group][s][first_page : batch.layout.num_pages(stops[s])])
        spans.append(_Span(offsets[s], offsets[s + 1], starts[s], first_key, stops[s] - first_key, blocks))
    return spans


def gather(rows: LayerRows, span: _Span, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of a sequence's visible pages: [kv_heads, keys, head_dim] each, real tokens only."""
    pages = rows.pages(span.blocks, dtype)  # [pages, kv_heads, 2, page_size, head_dim]
    num_pages, heads, _, page_size, dim = pages.shape
    both = pages.permute(2, 1, 0, 3, 4).reshape(2, heads, num_pages * page_size, dim)[:, :, : span.num_keys]
    return both[0], both[1]


def attend(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, options: LayerOptions) -> Tensor:
    """Attention of one sequence: q [queries, query_heads, dim]; keys and values [kv_heads, keys, dim] in fp32; hidden
    [queries, keys] true where a query must not see a key. Returns [queries, query_heads, dim] in q's dtype."""
    weights = torch.softmax(_logits(q, keys, hidden, options), dim=-1)
    return _weighed(weights, values).to(q.dtype)


def attend_partly(
    q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, options: LayerOptions
) -> tuple[Tensor, Tensor]:
    """The same in fp32, and the log of the sum of exp(score) [queries, query_heads]; 0 and -inf where nothing is seen.
    ``options.sinks`` join the sum."""
    logits = _logits(q, keys, hidden, options)  # [kv_heads, group, queries, keys, and a sink]
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.exp(logits - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    return _weighed(weights, values), lse.permute(2, 0, 1).reshape(q.shape[:2])


def _logits(q: Tensor, keys: Tensor, hidden: Tensor | None, options: LayerOptions) -> Tensor:
    """[kv_heads, query_heads / kv_heads, queries, keys], and one more for the sink where there are sinks."""
    num_queries, query_heads, dim = q.shape
    kv_heads, num_keys, _ = keys.shape
    group = query_heads // kv_heads
    folded = q.float().view(num_queries, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    scale = dim**-0.5 if options.scale is None else options.scale
    scores = torch.matmul(folded, keys.transpose(1, 2)).view(kv_heads, group, num_queries, num_keys) * scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if options.sinks is None:
        return scores
    sinks = options.sinks.float().view(kv_heads, group, 1, 1).expand(-1, -1, num_queries, 1)
    return torch.cat([scores, sinks], dim=-1)


def _weighed(weights: Tensor, values: Tensor) -> Tensor:
    """Weights as _logits has them -> [queries, query_heads, dim]."""
    kv_heads, group, num_queries, _ = weights.shape
    num_keys, dim = values.shape[1:]
    out = torch.matmul(weights[..., :num_keys].reshape(kv_heads, -1, num_keys), values)
    return out.view(kv_heads, group, num_queries, dim).permute(2, 0, 1, 3).reshape(num_queries, kv_heads * group, dim)


def hidden_keys(
    num_queries: int, num_keys: int, position: int, first_key: int, window: int | None, device: torch.device
) -> Tensor | None:
    """[queries, keys] true where a query must not see a key; None where every query sees every key."""
    last_key = first_key + num_keys - 1
    if num_queries == 1 and last_key == position and (window is None or first_key > position - window):
        return None
    keys = torch.arange(first_key, first_key + num_keys, device=device)
    return hidden_at(num_queries, keys, position, window)


def hidden_at(num_queries: int, keys: Tensor, position: int, window: int | None) -> Tensor:
    """The same of keys [keys] at any positions."""
    query = torch.arange(position, position + num_queries, device=keys.device)[:, None]
    key = keys[None, :]
    hidden = key > query
    return hidden if window is None else hidden | (key <= query - window)


def check_packed(batch: StepBatch, layer: int, q: Tensor, k: Tensor, v: Tensor, options: LayerOptions) -> None:
    """Raises ConfigError unless q, k and v are what the batch and the layout say."""
    layout = batch.layout
    if not 0 <= layer < layout.layers:
        raise ConfigError(f"layer {layer} is not one of the layout's {layout.layers} layers")
    group = layout.groups[layout.places[layer].group]
    tokens = batch.num_tokens
    for name, rows in (("k", k), ("v", v)):
        if tuple(rows.shape) != (tokens, group.kv_heads, group.head_dim):
            raise ConfigError(
                f"{name} has shape {tuple(rows.shape)}, expected [tokens, kv_heads, head_dim] "
                f"({tokens}, {group.kv_heads}, {group.head_dim})"
            )
        if rows.dtype not in writable_dtypes(layout):
            raise ConfigError(f"{name} is {rows.dtype}, the cache holds {layout.dtype}: convert it first")
    if k.dtype != v.dtype:
        raise ConfigError(f"k is {k.dtype} and v is {v.dtype}: give both in one dtype")
    is_packed = q.dim() == 3 and q.shape[0] == tokens and q.shape[2] == group.head_dim
    if not is_packed or q.shape[1] == 0 or q.shape[1] % group.kv_heads:
        raise ConfigError(
            f"q has shape {tuple(q.shape)}, expected [tokens, query_heads, head_dim] with {tokens} tokens, "
            f"a multiple of {group.kv_heads} heads and head_dim {group.head_dim}"
        )
    if options.sinks is not None and tuple(options.sinks.shape) != (q.shape[1],):
        raise ConfigError(f"sinks have shape {tuple(options.sinks.shape)}, expected one per query head ({q.shape[1]},)")
