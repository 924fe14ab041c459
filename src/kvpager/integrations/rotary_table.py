"""cos and sin of every position, computed once by the model's own module: a position's angles never change
(model_layout.py refuses models where they do), and computing them takes longer than a layer's norms.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvpager.integrations.native_matrix import dtype_name

_FIRST_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Angles:
    """cos and sin of some positions, [n, head_dim]; the tensors own the memory of ``rotary``."""

    tensors: tuple[Tensor, Tensor]
    rotary: Any

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor, kernels: Any) -> "Angles":
        rotary = kernels.Rotary(
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            token_stride=cos.stride(0),
            tokens=cos.shape[0],
            rotary_dim=cos.shape[1],
            dtype=dtype_name(cos),
        )
        return cls((cos, sin), rotary)


class RotaryTable:
    """Grows with the highest position. ``like``: a tensor of the dtype that the module is to answer in."""

    def __init__(self, module: nn.Module, like: Tensor, kernels: Any) -> None:
        self._module, self._like, self._kernels = module, like, kernels
        self._all: Angles | None = None

    def up_to(self, positions: int) -> Angles:
        """Of at least the positions 0 to ``positions`` - 1, in order."""
        if self._all is None or positions > len(self._all.tensors[0]):
            some = torch.arange(max(_FIRST_POSITIONS, 1 << (positions - 1).bit_length()))
            cos, sin = (table[0] for table in self._module(self._like[None, :1], some[None]))
            self._all = Angles.of(cos, sin, self._kernels)
        return self._all

    def at(self, positions: Tensor) -> Angles:
        """Of each of ``positions`` [T]."""
        needed = int(positions.max()) + 1 if len(positions) else 1
        cos, sin = (torch.index_select(table, 0, positions) for table in self.up_to(needed).tensors)
        return Angles.of(cos, sin, self._kernels)
