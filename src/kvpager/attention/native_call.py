"""What the native attention kernels are given: checks torch tensors and passes their addresses on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.errors import ConfigError

_DTYPE_NAME = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(slots=True)
class NativeCall:
    """``arguments`` of AttentionPlan.run and SegmentedAttention.begin; ``q`` and ``sinks`` keep their memory alive."""

    arguments: tuple[Any, ...]
    q: Tensor
    sinks: Tensor | None

    @classmethod
    def of(
        cls, plan: Any, layer: Any, q: Tensor, out: Tensor, options: LayerOptions, lse: Tensor | None
    ) -> "NativeCall":
        """``plan`` and ``layer``: a native plan and CacheLayer. q and out [tokens, query_heads, head_dim], any strides
        of tokens and heads; lse [tokens, query_heads] contiguous, to be written."""
        dtype = _DTYPE_NAME.get(q.dtype)
        if dtype is None:
            raise ConfigError(f"q is {q.dtype}; choose one of {', '.join(_DTYPE_NAME.values())}")
        if q.shape[0] != plan.num_tokens:
            raise ConfigError(f"q has {q.shape[0]} tokens, the plan has {plan.num_tokens}")
        if q.shape[2] != layer.head_dim:
            raise ConfigError(f"q has head_dim {q.shape[2]}, the layer has {layer.head_dim}")
        if q.stride(2) != 1:
            q = q.contiguous()
        sinks = None if options.sinks is None else options.sinks.to(device="cpu", dtype=torch.float32).contiguous()
        arguments = (
            layer,
            q.shape[1],
            q.data_ptr(),
            q.stride(0),
            q.stride(1),
            dtype,
            out.data_ptr(),
            out.stride(0),
            out.stride(1),
            _DTYPE_NAME[out.dtype],
            q.shape[2] ** -0.5 if options.scale is None else options.scale,
            options.softcap or 0.0,
            0 if sinks is None else sinks.data_ptr(),
            0 if lse is None else lse.data_ptr(),
        )
        return cls(arguments, q, sinks)
