"""What the native kernels that move rows are given: checks torch tensors and passes their addresses on.

The kernels take raw addresses, because a call per layer must cost about a microsecond. ``native`` is their module.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kvpager.errors import ConfigError
from kvpager.memory.layout import KVLayout

_MAX_HEAD_DIM = 256
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def can_write(layout: KVLayout, layer: int) -> bool:
    """Whether ``write_rows`` can write this layer."""
    return layout.groups[layout.places[layer].group].head_dim <= _MAX_HEAD_DIM


def write_rows(native: ModuleType, layer: Any, slots: Any, k: Tensor, v: Tensor, rotary: Any = None) -> None:
    """Writes ``k`` and ``v`` [tokens, kv_heads, head_dim] into a ``CacheLayer`` at ``slots`` (``TokenSlots``).

    The head shape is taken from the layer; token and head strides are free. Rows of another float dtype than the
    cache's are converted, rounded to nearest even; quantized layers keep their scales
    (tiers/quantized.py). ``rotary``: ``Rotary`` tables of these tokens, applied to K.
    """
    k, v = (rows if rows.stride(-1) == 1 else rows.contiguous() for rows in (k, v))
    dtype = _check_rows("k", k)
    if _check_rows("v", v) != dtype or k.shape != v.shape:
        raise ConfigError(f"k and v must be alike; they are {tuple(k.shape)} {k.dtype} and {tuple(v.shape)} {v.dtype}")
    if tuple(k.shape) != (slots.tokens, layer.kv_heads, layer.head_dim):
        raise ConfigError(
            f"k has shape {tuple(k.shape)}, expected [tokens, kv_heads, head_dim] "
            f"({slots.tokens}, {layer.kv_heads}, {layer.head_dim})"
        )
    k_token, k_head, _ = k.stride()
    v_token, v_head, _ = v.stride()
    native.kv_write(layer, slots, k.data_ptr(), k_token, k_head, v.data_ptr(), v_token, v_head, dtype, rotary)


def rotary_tables(native: ModuleType, cos: Tensor, sin: Tensor) -> Any:
    """``cos`` and ``sin`` [tokens, rotary_dim] as the kernels take them; holds on to both."""
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.stride(1) != 1 or table.dtype not in _NAMES or table.device.type != "cpu":
            raise ConfigError(
                f"{name} must be a float tensor [tokens, rotary_dim] on cpu whose rows are contiguous, not "
                f"{tuple(table.shape)} {table.dtype} on {table.device}"
            )
    if cos.shape != sin.shape or cos.dtype != sin.dtype or cos.stride() != sin.stride():
        raise ConfigError("cos and sin must be alike in shape, dtype and strides")
    rotary = native.Rotary(
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        token_stride=cos.stride(0),
        tokens=cos.shape[0],
        rotary_dim=cos.shape[1],
        dtype=_NAMES[cos.dtype],
    )
    rotary.tables = cos, sin  # it borrows their memory
    return rotary


def rotate_rows(native: ModuleType, rotary: Any, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotates ``x`` [tokens, heads, head_dim] in place, or into ``out``, which has its shape and dtype.

    Bit-equal to torch's ``x * cos + rotate_half(x) * sin`` in the dtype of x; see csrc/rotary.h.
    """
    out = x if out is None else out
    dtype = _check_rows("x", x)
    if _check_rows("out", out) != dtype or out.shape != x.shape:
        raise ConfigError(f"out must be like x, {tuple(x.shape)} {x.dtype}, not {tuple(out.shape)} {out.dtype}")
    tokens, heads, head_dim = x.shape
    if tokens != rotary.tokens:
        raise ConfigError(f"x has {tokens} tokens, the rotary tables have {rotary.tokens}")
    x_token, x_head, _ = x.stride()
    out_token, out_head, _ = out.stride()
    native.rotate(rotary, heads, head_dim, x.data_ptr(), x_token, x_head, out.data_ptr(), out_token, out_head, dtype)
    return out


def _check_rows(name: str, rows: Tensor) -> str:
    dtype = _NAMES.get(rows.dtype)
    if dtype is None or rows.dim() != 3 or rows.device.type != "cpu":
        raise ConfigError(
            f"{name} must be a float tensor [tokens, heads, head_dim] on cpu, not {tuple(rows.shape)} {rows.dtype} "
            f"on {rows.device}"
        )
    if rows.stride(2) != 1 and rows.shape[2] > 1:
        raise ConfigError(f"{name} must have contiguous rows; its strides are {rows.stride()}")
    return dtype
