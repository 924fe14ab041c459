"""Runs steps through a backend and compares every output row with the oracle.

K and V of a position are drawn from a generator seeded by the layer and all tokens up to it, so that whoever shares a
prefix shares its rows, as a model would make them.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from kvpager import PagedCache
from kvpager.attention import AttentionBackend, LayerOptions
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import StepBatch
from kvpager.tiers.rows import FLOAT_DTYPE
from tests.attention.oracle import attention
from tests.quantized import pool_bytes, stored_values

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3, "int8": 1e-5, "float8_e4m3": 1e-5}


@dataclass(frozen=True)
class Extras:
    """The options of a layer, as numbers for the oracle and as tensors for a backend."""

    scale: float | None = None
    softcap: float | None = None
    sinks: tuple[float, ...] | None = None

    def options(self) -> LayerOptions:
        return LayerOptions(self.scale, self.softcap, None if self.sinks is None else torch.tensor(self.sinks))


@lru_cache(maxsize=1 << 15)
def _drawn(seed: int, kv_heads: int, head_dim: int) -> np.ndarray:
    """K and V of one position, [2, kv_heads, head_dim]. Kept: prompts share beginnings."""
    return np.random.default_rng(seed).standard_normal((2, kv_heads, head_dim))


class Bench:
    def __init__(
        self, cache: PagedCache, backend: AttentionBackend, query_heads: int, extras: Extras | None = None
    ) -> None:
        self.cache = cache
        self.layout = cache.layout
        self.backend = backend
        self.query_heads = query_heads
        self.extras = extras or Extras()
        self.dtype = FLOAT_DTYPE.get(self.layout.dtype, torch.float32)

    def kv(self, layer: int, tokens: list[int], start: int, stop: int) -> tuple[Tensor, Tensor]:
        """[stop-start, kv_heads, head_dim] each, in the cache's dtype."""
        group = self.layout.groups[self.layout.places[layer].group]
        state = hashlib.sha256(str(layer).encode())
        rows = []
        for position, token in enumerate(tokens[:stop]):
            state.update(token.to_bytes(4, "little"))
            if position >= start:
                seed = int.from_bytes(state.copy().digest()[:8], "little")
                rows.append(_drawn(seed, group.kv_heads, group.head_dim))
        both = torch.from_numpy(np.array(rows)).to(self.dtype)
        return both[:, 0], both[:, 1]

    def queries(self, count: int, layer: int) -> Tensor:
        group = self.layout.groups[self.layout.places[layer].group]
        generator = torch.Generator().manual_seed(1000 * layer + count)
        return torch.randn(count, self.query_heads, group.head_dim, generator=generator).to(self.dtype)

    def step(self, counts: dict[Sequence, int]) -> list[Tensor]:
        """One step over all layers, compared with the oracle. Returns the outputs of each layer."""
        outputs = []
        with self.cache.step(counts) as step:
            plan = self.backend.plan(step.batch, self.cache.arena)
            for layer in range(self.layout.layers):
                pieces = [
                    self.kv(layer, list(seq.tokens), start, stop)
                    for seq, start, stop in zip(
                        step.sequences, step.batch.starts.tolist(), step.batch.stops.tolist(), strict=True
                    )
                ]
                k, v = (torch.cat([piece[half] for piece in pieces]) for half in range(2))
                q = self.queries(step.batch.num_tokens, layer)
                out = plan.run(layer, q, k, v, self.extras.options())
                assert out.shape == q.shape
                assert out.dtype == q.dtype
                self._compare(step.sequences, step.batch, layer, q, out)
                outputs.append(out)
        return outputs

    def _compare(self, sequences: tuple[Sequence, ...], batch: StepBatch, layer: int, q: Tensor, out: Tensor) -> None:
        offsets = batch.offsets().tolist()
        for at, seq in enumerate(sequences):
            start, stop = int(batch.starts[at]), int(batch.stops[at])
            k, v = self._held(batch, at, layer, seq, stop)
            rows = slice(offsets[at], offsets[at + 1])
            expected = attention(
                q[rows].double().numpy(),
                k,
                v,
                start,
                self.layout.groups[self.layout.places[layer].group].window,
                self.extras.scale,
                self.extras.softcap,
                None if self.extras.sinks is None else np.array(self.extras.sinks),
            )
            found = out[rows].double().numpy()
            assert np.isfinite(found).all(), f"layer {layer}, positions {start} to {stop}: not finite"
            error = np.abs(found - expected).max() / np.abs(expected).max()
            assert error <= TOLERANCE[self.layout.dtype], (
                f"layer {layer}, positions {start} to {stop}: error {error:.2e}"
            )

    def _held(self, batch: StepBatch, at: int, layer: int, seq: Sequence, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V [stop, kv_heads, head_dim] of a sequence: as drawn, or as a quantized pool holds them."""
        if not self.layout.is_quantized:
            k, v = self.kv(layer, list(seq.tokens), 0, stop)
            return k.double().numpy(), v.double().numpy()
        pages, slots = np.divmod(np.arange(stop), self.layout.page_size)
        table = batch.tables[self.layout.places[layer].group][at]
        where = zip(table[pages].tolist(), slots.tolist(), strict=True)
        return stored_values(pool_bytes(self.cache), self.layout, layer, where)


def fill_arena(cache: PagedCache, byte: int) -> None:
    """0xFF is NaN in every float dtype."""
    cache.arena.fill(np.arange(cache.pool.num_blocks), byte)
