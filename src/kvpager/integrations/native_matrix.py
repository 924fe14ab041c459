"""The memory of a torch tensor as the native kernels take it. Whoever asks keeps the tensor."""

from typing import Any

from torch import Tensor


def native_matrix(kernels: Any, rows: Tensor) -> Any:
    """``rows`` [n, columns], whose columns are contiguous, as a native Matrix."""
    assert rows.stride(1) == 1
    return kernels.Matrix(
        address=rows.data_ptr(),
        rows=rows.shape[0],
        columns=rows.shape[1],
        row_stride=rows.stride(0),
        dtype=dtype_name(rows),
    )


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
