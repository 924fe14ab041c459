"""The buffers that the layers of a pass share, as tensors and as the native kernels take them. Knows no weights."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvpager.integrations.native_matrix import dtype_name, native_matrix


@dataclass(frozen=True, slots=True)
class Widths:
    """Columns of the buffers, and how q, k and v lie in theirs."""

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    gated: int


@dataclass(slots=True)
class Buffers:
    """What passes that follow one another may share, of one decoder."""

    rows: "LayerRows | None" = None

    def rows_for(self, tokens: int, widths: Widths, dtype: torch.dtype, kernels: Any) -> "LayerRows":
        """Those of the last pass where it had as many tokens."""
        if self.rows is None or len(self.rows.hidden) != tokens:
            self.rows = LayerRows.of(tokens, widths, dtype, kernels)
        return self.rows


@dataclass(frozen=True, slots=True)
class LayerRows:
    """The buffers of a step with T tokens, and the same memory as the kernels take it."""

    hidden: Tensor  # [T, hidden] the residual stream
    normed: Tensor  # [T, hidden]
    qkv: Tensor  # [T, (query_heads + 2 * kv_heads) * head_dim]
    q: Tensor  # [T, query_heads, head_dim], a view of qkv, as are k and v
    k: Tensor
    v: Tensor
    projected: Tensor  # [T, hidden] what a block adds to the residual stream
    gate_up: Tensor  # [T, 2 * gated]
    gated: Tensor  # [T, gated]
    hidden_matrix: Any
    normed_matrix: Any
    q_matrix: Any
    k_matrix: Any
    qk_place: tuple[Any, ...]  # all heads of q and k, as rotate() takes input and output: these are the same
    projected_matrix: Any
    gate_up_matrix: Any
    gated_matrix: Any

    @classmethod
    def of(cls, tokens: int, widths: Widths, dtype: torch.dtype, kernels: Any) -> "LayerRows":
        matrix = partial(native_matrix, kernels)
        hidden, normed, projected = (torch.empty(tokens, widths.hidden, dtype=dtype) for _ in range(3))
        gated, gate_up = (torch.empty(tokens, factor * widths.gated, dtype=dtype) for factor in (1, 2))
        heads = [widths.query_heads, widths.kv_heads, widths.kv_heads]
        qkv = torch.empty(tokens, sum(heads) * widths.head_dim, dtype=dtype)
        q, k, v = torch.split(qkv.view(tokens, sum(heads), widths.head_dim), heads, dim=1)
        place = (qkv.data_ptr(), qkv.stride(0), widths.head_dim)
        of_keys = sum(heads[:1]) * widths.head_dim
        of_values = sum(heads[:2]) * widths.head_dim
        return cls(
            hidden=hidden,
            normed=normed,
            qkv=qkv,
            q=q,
            k=k,
            v=v,
            projected=projected,
            gate_up=gate_up,
            gated=gated,
            hidden_matrix=matrix(hidden),
            normed_matrix=matrix(normed),
            q_matrix=matrix(qkv[:, :of_keys]),
            k_matrix=matrix(qkv[:, of_keys:of_values]),
            qk_place=(heads[0] + heads[1], widths.head_dim, *place, *place, dtype_name(qkv)),
            projected_matrix=matrix(projected),
            gate_up_matrix=matrix(gate_up),
            gated_matrix=matrix(gated),
        )
