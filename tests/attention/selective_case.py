"""One sequence in a pool that selective attention is tried on, step by step, without a model."""

from contextlib import AbstractContextManager
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from kvpager import KVLayout, open_cache
from kvpager.attention import LayerOptions
from kvpager.attention.backend import DEFAULT_OPTIONS
from kvpager.attention.page_view import PageView
from kvpager.attention.reference import ReferenceBackend
from kvpager.attention.selective import SelectiveState
from kvpager.config.attend import Selective
from kvpager.tiers.rows import FLOAT_DTYPE
from tests.quantized import pool_bytes
from tests.stamp import T


class SelectiveCase(AbstractContextManager["SelectiveCase"]):
    """Rows are random numbers."""

    def __init__(self, layout: KVLayout, settings: Selective, group: int = 2, options: LayerOptions = DEFAULT_OPTIONS):
        self.layout = layout
        self.options = options
        self.cache = open_cache(layout, num_blocks=64)
        self.backend = ReferenceBackend()
        self.state = SelectiveState(layout, settings)
        self.group = group
        self.generator = torch.Generator().manual_seed(5)
        self.seq = self.cache.sequence(T(0, 1))
        self.next_token = 1

    def __enter__(self) -> "SelectiveCase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cache.close()

    def rows(self, layer: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.layout.groups[self.layout.places[layer].group]
        dtype = FLOAT_DTYPE[self.layout.dtype]
        heads = (shape.kv_heads * self.group, shape.kv_heads, shape.kv_heads)
        q, k, v = (torch.randn(count, n, shape.head_dim, generator=self.generator).to(dtype) for n in heads)
        return q, k, v

    def step(self, count: int, q_factor: float = 1.0) -> list[tuple[Tensor, Tensor | None]]:
        """Exact and selective output of each layer for ``count`` new tokens."""
        missing = self.seq.length + count - len(self.seq.tokens)
        if missing > 0:
            self.seq.append(T(self.next_token, self.next_token + missing))  # never the same twice: neither are the rows
            self.next_token += missing
        found = []
        with self.cache.step({self.seq: count}) as step:
            plan = self.backend.plan(step.batch, self.cache.arena)
            for layer in range(self.layout.layers):
                q, k, v = self.rows(layer, count)
                q = q * q_factor
                exact = plan.run(layer, q, k, v, self.options)
                before = pool_bytes(self.cache).copy()
                view = PageView.of(step.batch, self.cache.arena, self.layout.places[layer].group, 0)
                mine = self.state.attend(layer, view, q, self.options)
                if mine is None:
                    self.state.attended(layer, view, q, self.options)
                assert np.array_equal(pool_bytes(self.cache), before)
                found.append((exact, mine))
        return found
