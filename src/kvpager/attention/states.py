"""What attention keeps of a sequence besides its pages, and how it takes part in a step.

plan.run(layer)   K and V of the new tokens are written
                  state.attend(...)     attends its own way, or leaves it to exact attention
                  state.attended(...)   after exact attention: measures which pages mattered
step closed       the cache asks state.pages_to_give_back(...)
"""

from typing import Protocol

from torch import Tensor

from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_view import PageView
from kvpager.cache.attention_state import AttentionState


class LayerState(AttentionState, Protocol):
    """An AttentionState as a backend's plan uses it: once a layer, in any order of layers but the same each step."""

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        """q [queries, query_heads, head_dim] of this sequence. The same shape and dtype; None: attend exactly, please.

        K and V of the new tokens lie in their blocks already.
        """
        ...

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        """Exact attention has taken place."""
        ...
