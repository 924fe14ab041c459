"""The ways to write attention in torch over a contiguous cache: what the native kernels are compared with.

q [S, query_heads, T, dim] of the last T positions; k and v [S, kv_heads, L, dim]. All return q's shape, and all share
a K/V head by its whole group of query heads, which torch does in ways that differ by an order of magnitude in speed.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

TorchAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def causal_bias(num_queries: int, num_keys: int, dtype: torch.dtype) -> Tensor | None:
    """[T, L] -inf where a query must not look, else 0; None for a single query, which sees all."""
    if num_queries == 1:
        return None
    hidden = torch.ones(num_queries, num_keys, dtype=torch.bool).triu_(num_keys - num_queries + 1)
    return torch.zeros(num_queries, num_keys, dtype=dtype).masked_fill_(hidden, float("-inf"))


def sdpa_gqa(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """As torch offers it: enable_gqa."""
    return scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)


def sdpa_expanded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """K and V repeated for every query head of the group, as models do that know no grouped heads."""
    group = q.shape[1] // k.shape[1]
    return scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), bias)


def sdpa_grouped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """KV heads as a batch dimension, the group as heads that share K and V by a stride of 0."""
    sequences, kv_heads, _, dim = k.shape
    grouped = q.reshape(sequences * kv_heads, -1, q.shape[2], dim)
    keys, values = (rows.reshape(-1, 1, *rows.shape[2:]).expand(-1, grouped.shape[1], -1, -1) for rows in (k, v))
    return scaled_dot_product_attention(grouped, keys, values, bias).view(q.shape)


def sdpa_folded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The queries of a group as the rows of one matrix."""
    group = q.shape[1] // k.shape[1]
    folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    rows = None if bias is None else bias.repeat(group, 1)
    return scaled_dot_product_attention(folded, k, v, rows).view(q.shape)


def bmm_folded(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The same with two matrix products and a softmax."""
    group = q.shape[1] // k.shape[1]
    folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]) * q.shape[3] ** -0.5
    scores = torch.matmul(folded, k.transpose(2, 3))
    if bias is not None:
        scores += bias.repeat(group, 1)
    return torch.matmul(torch.softmax(scores, -1), v).view(q.shape)
