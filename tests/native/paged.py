"""A pool of NaN with some sequences in it, in any order of blocks, for the native attention; and the answer in fp64."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.backend import LayerOptions
from kvpager.attention.cpu import attend
from tests.attention.oracle import attention as oracle

TORCH = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "float8_e4m3": torch.float8_e4m3fn,
}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}


@dataclass
class Paged:
    """``lengths[i]`` cached tokens of sequence i, the last ``queries[i]`` of which are new. The rows of a sequence
    follow from ``names[i]`` alone, its blocks from ``order``."""

    lengths: list[int]
    queries: list[int]
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 16
    page_size: int = 4
    dtype: str = "float32"
    q_dtype: str = "float32"
    window: int | None = None
    options: LayerOptions = field(default_factory=LayerOptions)
    order: int = 0
    names: list[int] | None = None
    spare: int = 3  # blocks of nobody

    def __post_init__(self) -> None:
        self.names = self.names or list(range(len(self.lengths)))
        pages = [-(-length // self.page_size) for length in self.lengths]
        self.num_blocks = max(1, sum(pages) + self.spare)
        ids = np.random.default_rng(self.order).permutation(self.num_blocks).astype(np.int32)
        self.tables = np.split(ids[: sum(pages)], np.cumsum(pages)[:-1]) if pages else []
        self._allocate()
        self.keys, self.values, queries = [], [], [torch.empty(0, self.kv_heads * self.group, self.head_dim)]
        for name, length, count, table in zip(self.names, self.lengths, self.queries, self.tables, strict=True):
            generator = torch.Generator().manual_seed(name)
            rows = torch.randn(2, length, self.kv_heads, self.head_dim, generator=generator)
            queries.append(torch.randn(count, self.kv_heads * self.group, self.head_dim, generator=generator))
            held = self._write(rows, table)
            self.keys.append(held[0])
            self.values.append(held[1])
        self.q = torch.cat(queries).to(TORCH[self.q_dtype])

    def _allocate(self) -> None:
        self.dtype_torch = TORCH[self.dtype]
        self.is_quantized = self.dtype in ("int8", "float8_e4m3")
        item = self.dtype_torch.itemsize
        slot = self.head_dim * item
        half = self.page_size * slot
        rows = 2 * half * self.kv_heads
        at_scales = -(-rows // 4) * 4
        stride = -(-(at_scales + 8 * self.kv_heads) // 64) * 64
        self.pool = torch.full((self.num_blocks * stride + 64,), 0xFF, dtype=torch.uint8)
        self.pool = self.pool[-self.pool.data_ptr() % 64 :][: self.num_blocks * stride]
        self.view = self.pool.view(self.dtype_torch).as_strided(
            (self.num_blocks, self.kv_heads, 2, self.page_size, self.head_dim),
            (stride // item, 2 * half // item, half // item, self.head_dim, 1),
        )
        self.scales = self.pool.view(torch.float32).as_strided(
            (self.num_blocks, self.kv_heads, 2), (stride // 4, 2, 1), at_scales // 4
        )
        self.layer_arguments: dict[str, Any] = {
            "address": self.pool.data_ptr(),
            "num_blocks": self.num_blocks,
            "block_stride": stride,
            "head_stride": 2 * half,
            "half_stride": half,
            "slot_stride": slot,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "page_size": self.page_size,
            "dtype": self.dtype,
            "scales": self.pool.data_ptr() + at_scales if self.is_quantized else 0,
        }

    def _write(self, rows: Tensor, table: np.ndarray) -> Tensor:
        """rows [2, length, kv_heads, head_dim]. Returns what is held, in fp64."""
        held = torch.empty(rows.shape, dtype=torch.float64)
        for page, block in enumerate(table.tolist()):
            part = rows[:, page * self.page_size : (page + 1) * self.page_size]
            count = part.shape[1]
            if self.is_quantized:
                top = 127.0 if self.dtype == "int8" else 448.0
                scale = part.abs().amax(dim=(1, 3), keepdim=True) / top  # [2, 1, kv_heads, 1]
                part = part / scale
                part = part.round() if self.dtype == "int8" else part
                self.scales[block] = scale[:, 0, :, 0].T
            stored = part.to(self.dtype_torch)
            self.view.view(torch.uint8 if self.dtype_torch.itemsize == 1 else self.dtype_torch)[block, :, :, :count] = (
                stored.permute(2, 0, 1, 3)
                .contiguous()
                .view(torch.uint8 if self.dtype_torch.itemsize == 1 else self.dtype_torch)
            )
            back = stored.double()
            held[:, page * self.page_size : page * self.page_size + count] = (
                back * self.scales[block].double().T[:, None, :, None] if self.is_quantized else back
            )
        return held

    @property
    def starts(self) -> list[int]:
        return [length - count for length, count in zip(self.lengths, self.queries, strict=True)]

    def layer(self) -> Any:
        return native.module().CacheLayer(**self.layer_arguments)

    def plan_arguments(self) -> dict[str, Any]:
        firsts = [0 if self.window is None else max(0, s - self.window + 1) // self.page_size for s in self.starts]
        tables = [table[first:] for table, first in zip(self.tables, firsts, strict=True)]
        return {
            "query_offsets": np.cumsum([0, *self.queries]),
            "starts": np.array(self.starts, np.int64),
            "table_offsets": np.cumsum([0, *map(len, tables)]),
            "blocks": np.concatenate([np.empty(0, np.int32), *tables]),
            "window": self.window or 0,
            "page_size": self.page_size,
            "num_blocks": self.num_blocks,
        }

    def plan(self, **change: Any) -> Any:
        return native.module().AttentionPlan(**{**self.plan_arguments(), **change})

    def subset(self, keep: list[np.ndarray]) -> Any:
        """A plan over the pages ``keep[i]`` of sequence i only."""
        return self.plan(
            blocks=np.concatenate([table[pages] for table, pages in zip(self.tables, keep, strict=True)]),
            pages=np.concatenate(keep).astype(np.int32),
            table_offsets=np.cumsum([0, *map(len, keep)]),
        )

    def run(self) -> Tensor:
        return attend(self.plan(), self.layer(), self.q, self.options)

    def expected(self) -> np.ndarray:
        out, at = [], 0
        for k, v, start, count in zip(self.keys, self.values, self.starts, self.queries, strict=True):
            q = self.q[at : at + count].double().numpy()
            sinks = None if self.options.sinks is None else self.options.sinks.double().numpy()
            out.append(
                oracle(q, k.numpy(), v.numpy(), start, self.window, self.options.scale, self.options.softcap, sinks)
            )
            at += count
        return np.concatenate(out)

    def check(self) -> Tensor:
        found = self.run()
        assert found.dtype == self.q.dtype
        assert found.isfinite().all()
        expected = self.expected()
        error = np.abs(found.double().numpy() - expected).max() / np.abs(expected).max()
        assert error <= TOLERANCE[self.q_dtype], f"error {error:.2e}"
        return found
