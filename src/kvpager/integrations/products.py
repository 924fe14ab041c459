"""Matrix products of rows with weights as modules store them: which are native, and which are torch's.

    weights    rows                   product
    fp16       any                    torch's; the native one has no fp16
    fp32       any                    native with AVX2 and no more, where it comes nearer to the processor's peak
               up to ``few_rows()``   native elsewhere, above torch's
    bf16       any                    native with matrix tiles (AMX), and where no instruction multiplies bf16: torch's
                                      takes several times as long
               up to ``few_rows()``   native, where only dot products do: reading the weights is all that takes time;
                                      above torch's

The native product has the same bits for a row in every batch, and both have the same bits for the same batch: so with
batches that follow from a request alone (deterministic mode), a row's bits do too. Knows no layers.
"""

from typing import Any

import torch
from torch import Tensor

from kvpager import native
from kvpager.integrations.decoder_layers import Projection
from kvpager.integrations.native_matrix import native_matrix

_FEW_ROWS = {"avx512_bf16": 8, "amx": 8}  # by instruction set
_FEW_ROWS_ELSEWHERE = 64


def few_rows() -> int:
    """Rows up to which a product of fp32 or bf16 is native whatever the processor."""
    kernels = native.module()
    return _FEW_ROWS_ELSEWHERE if kernels is None else _FEW_ROWS.get(kernels.isa(), _FEW_ROWS_ELSEWHERE)


def is_native(rows: int, dtype: torch.dtype) -> bool:
    """Whether the product of so many rows is. REQUIRES: on the CPU."""
    kernels = native.module()
    if kernels is None or dtype not in (torch.float32, torch.bfloat16):
        return False
    if dtype == torch.bfloat16:
        return rows <= few_rows() or kernels.isa() != "avx512_bf16"
    return rows <= few_rows() or kernels.isa() == "avx2"


def matrix_product(rows: Tensor, projection: Projection, out: Tensor) -> None:
    """out [T, outputs] = rows [T, inputs] times the weights [outputs, inputs], transposed, plus the bias.

    Sums are formed in fp32, the bias is added to them, and the result is rounded once: by torch too.
    """
    weight, bias = projection.weight, projection.bias
    if is_native(len(rows), weight.dtype):
        kernels: Any = native.module()
        added = None if bias is None else native_matrix(kernels, bias[None])
        kernels.product(
            native_matrix(kernels, rows), native_matrix(kernels, weight), added, native_matrix(kernels, out)
        )
    elif bias is None:
        torch.mm(rows, weight.t(), out=out)
    else:
        torch.addmm(bias, rows, weight.t(), out=out)
