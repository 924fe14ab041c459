"""Attention in fp64 on gathered rows, one query at a time, in numpy: shares no line with any backend."""

import numpy as np


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    position: int,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """q [queries, query_heads, dim] from ``position`` on; k, v [keys, kv_heads, dim] from position 0 on."""
    queries, query_heads, dim = q.shape
    kv_heads = k.shape[1]
    shared = [head * kv_heads // query_heads for head in range(query_heads)]
    keys, values = (rows.astype(np.float64).transpose(1, 0, 2)[shared] for rows in (k, v))  # [query_heads, keys, dim]
    out = np.empty(q.shape, np.float64)
    for i in range(queries):
        last = position + i
        first = 0 if window is None else max(0, last - window + 1)
        scores = (keys[:, first : last + 1] @ q[i].astype(np.float64)[:, :, None])[:, :, 0]  # [query_heads, seen keys]
        scores *= dim**-0.5 if scale is None else scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        top = scores.max(axis=1) if sinks is None else np.maximum(scores.max(axis=1), sinks)
        weights = np.exp(scores - top[:, None])
        total = weights.sum(axis=1) + (0.0 if sinks is None else np.exp(sinks - top))
        out[i] = ((weights / total[:, None])[:, None] @ values[:, first : last + 1])[:, 0]
    return out
