"""Attention in fp64 on gathered rows, one query at a time, in numpy: shares no line with any backend."""

import math

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
    out = np.empty(q.shape, np.float64)
    for i in range(queries):
        last = position + i
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(query_heads):
            shared = head * kv_heads // query_heads
            keys = k[first : last + 1, shared].astype(np.float64)
            scores = keys @ q[i, head].astype(np.float64) * (dim**-0.5 if scale is None else scale)
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            top = max(scores.max(), -math.inf if sinks is None else float(sinks[head]))
            weights = np.exp(scores - top)
            total = weights.sum() + (0.0 if sinks is None else math.exp(float(sinks[head]) - top))
            out[i, head] = (weights / total) @ v[first : last + 1, shared].astype(np.float64)
    return out
