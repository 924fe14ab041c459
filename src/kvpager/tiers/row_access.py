"""How the cache moves K and V rows by hand. A protocol, so that the bookkeeping needs no tensor library."""

from typing import Any, Protocol

import numpy as np

Rows = Any  # a tensor of the library that the arena belongs to


class RowAccess(Protocol):
    """Rows of one arena. Raises ConfigError for tensors of another kind, shape or dtype."""

    def check_rows(self, k: Rows, v: Rows) -> int:
        """The number of tokens in ``k`` and ``v``, both [layers, tokens, kv_heads, head_dim]."""
        ...

    def write(self, layer: int, blocks: np.ndarray, slots: np.ndarray, k: Rows, v: Rows) -> None:
        """Token t of ``k`` and ``v`` ([tokens, kv_heads, head_dim]) goes to slot ``slots[t]`` of ``blocks[t]``."""
        ...

    def read(self, layers: list[int], blocks: list[np.ndarray], slots: np.ndarray) -> tuple[Rows, Rows]:
        """Copies of K and V, [layers, tokens, kv_heads, head_dim]; ``blocks[i][t]`` holds token t of ``layers[i]``."""
        ...
