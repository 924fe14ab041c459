"""Selective attention slowly and obviously, in numpy and torch: what the native kernels are measured against, and what
runs where there are none. csrc/digest.h and csrc/select.h say the same of the kernels.
"""

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.tiers.rows import FLOAT_DTYPE

_SLACK = np.float32(2.0**-17)  # of a key's size: more than what summing up in floats loses
_LEAST = np.float32(1e-37)  # a scale's inverse must be finite
_CAP = np.float32(1e30)  # bounds are finite; what is no number is above all others


@dataclass(frozen=True, slots=True)
class Digest:
    """Of one page: centres int8 and radii uint8 [kv_heads, head_dim], scales float32 [kv_heads, 2] of both."""

    centres: np.ndarray
    radii: np.ndarray
    scales: np.ndarray


def rows_at(address: int, shape: tuple[int, int, int], dtype: str) -> Tensor:
    """A layer's part of the page at a byte address: float32 [kv_heads, 2 (K, V), page_size, head_dim], copied.
    ``shape``: kv_heads, page_size, head_dim."""
    kv_heads, page_size, head_dim = shape
    stored = FLOAT_DTYPE[dtype]
    size = kv_heads * 2 * page_size * head_dim * stored.itemsize
    raw = torch.from_numpy(np.frombuffer(ctypes.string_at(address, size), np.uint8).copy())
    return raw.view(stored).view(kv_heads, 2, page_size, head_dim).float()


def digest(keys: np.ndarray) -> Digest:
    """keys float32 [kv_heads, page_size, head_dim]."""
    low, high = keys.min(axis=1), keys.max(axis=1)
    is_finite = np.isfinite(keys).all(axis=(1, 2))[:, None]
    low, high = np.where(is_finite, low, 0), np.where(is_finite, high, 0)
    mean = (np.where(is_finite[:, :, None], keys, 0) * np.float32(1 / keys.shape[1])).sum(axis=1)
    centre_scale = np.abs(mean).max(axis=1, keepdims=True) * np.float32(1 / 127) + _LEAST
    centres = np.rint(mean * (np.float32(1) / centre_scale))
    centre = centres * centre_scale
    farthest = np.maximum(high - centre, centre - low)
    radius = farthest + (farthest + np.abs(centre)) * _SLACK
    radius_scale = radius.max(axis=1, keepdims=True) * np.float32(1.000001 / 255) + _LEAST
    radii = np.ceil(radius * (np.float32(1) / radius_scale))
    return Digest(
        np.where(is_finite, centres, 0).astype(np.int8),
        np.where(is_finite, radii, 255).astype(np.uint8),
        np.concatenate([np.where(is_finite, centre_scale, 0), np.where(is_finite, radius_scale, np.inf)], axis=1),
    )


def scores(
    q: np.ndarray,
    centres: np.ndarray,
    radii: np.ndarray,
    scale: float,
    softcap: float | None,
    spread: float,
    lean: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of the pages, and estimated logs of the mean of exp(score): float32 [query_heads, pages] each.

    A rank is q.centre + lean * |q|.radius: with 1 the upper bound of the scores. q float32 [query_heads, head_dim];
    centres and radii as Digests.values has them.
    """
    kv_heads = centres.shape[1]
    folded = (q * np.float32(scale)).reshape(kv_heads, -1, q.shape[1])
    middle = np.einsum("hgd,phd->hgp", folded, centres).reshape(len(q), -1)
    with np.errstate(invalid="ignore"):
        reach = np.einsum("hgd,phd->hgp", np.abs(folded), radii).reshape(len(q), -1)
        bounds, estimates = middle + reach, middle + np.float32(spread) * reach * reach
        ranks = middle + np.float32(lean) * reach
    bounds, ranks, estimates = (np.where(each < _CAP, each, _CAP) for each in (bounds, ranks, estimates))
    estimates = np.minimum(estimates, bounds)
    if softcap:
        ranks, estimates = (np.tanh(each / softcap) * softcap for each in (ranks, estimates))
    return ranks.astype(np.float32), estimates.astype(np.float32)


def select(
    ranks: np.ndarray,
    estimates: np.ndarray,
    kv_heads: int,
    num_pages: int,
    num_sinks: int,
    first_recent: int,
    wanted: int,
    mass: float | None,
    page_size: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """The pages of each KV head, ascending; and the log of what is left out, float32 [query_heads].

    A page's depth for a query head is how far its rank lies below the log of the sum of exp(rank) over all pages,
    for a KV head the least of its query heads. Those of least depth are taken: as many as make ``wanted`` in all, or
    as few as leave out an estimated share of at most 1 - mass. Pages without a digest, the first ``num_sinks`` and
    those from ``first_recent`` on are always in.
    """
    num_digests = ranks.shape[1]
    depths = np.maximum(_log_total(ranks) - ranks, 0).reshape(kv_heads, -1, num_digests).min(axis=1)
    depths[:, :num_sinks] = depths[:, first_recent:] = -1
    shares = np.exp(estimates - _log_total(estimates))
    group = len(ranks) // kv_heads
    found, left_out = [], np.empty(len(ranks), np.float32)
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        order = np.argsort(depths[head], kind="stable")
        count = wanted - (num_pages - num_digests)
        if mass is not None:
            behind = shares[mine, order][:, ::-1].cumsum(axis=1)[:, ::-1].max(axis=0)  # left out from there on
            count = int(np.count_nonzero(behind > 1 - mass))
        count = max(count, int(np.count_nonzero(depths[head] < 0)))
        taken = np.sort(order[:count])
        found.append(np.concatenate([taken, np.arange(num_digests, num_pages)]))
        rest = np.sort(order[count:])
        with np.errstate(divide="ignore"):
            left_out[mine] = np.log(shares[mine][:, rest].sum(axis=1))
        left_out[mine] += _log_total(estimates[mine])[:, 0] + math.log(page_size)
    return found, left_out


def attend(q: Tensor, pages: list[Tensor], last_tokens: int, options: LayerOptions) -> tuple[Tensor, Tensor]:
    """q [query_heads, head_dim]; pages[h] [pages, 2, page_size, head_dim], float32, of KV head h: the last one holds
    ``last_tokens``. Returns float32 [query_heads, head_dim], and the log of the sum of exp(score) [query_heads]."""
    group, head_dim = len(q) // len(pages), q.shape[1]
    out, lse = torch.zeros(q.shape), torch.full(q.shape[:1], -math.inf)
    for head, held in enumerate(pages):
        for row in range(head * group, (head + 1) * group):
            if not len(held):
                continue
            num_tokens = (len(held) - 1) * held.shape[2] + last_tokens
            keys, values = (held[:, half].reshape(-1, head_dim)[:num_tokens] for half in range(2))
            score = keys @ q[row].float() * (head_dim**-0.5 if options.scale is None else options.scale)
            if options.softcap is not None:
                score = torch.tanh(score / options.softcap) * options.softcap
            sink = torch.empty(0) if options.sinks is None else options.sinks[row : row + 1].float()
            lse[row] = torch.logsumexp(torch.cat([score, sink]), dim=0)
            out[row] = torch.exp(score - lse[row]) @ values
    return out, lse


def _log_total(scores: np.ndarray) -> np.ndarray:
    """[rows, 1]"""
    if not scores.shape[1]:
        return np.full((len(scores), 1), -np.inf, np.float32)
    top = scores.max(axis=1, keepdims=True)
    return top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
