"""One case of paged attention to measure: a filled pool, open steps, and the same content in contiguous tensors.

Where one batch would stay in the caches of the processor, a case holds several, and calls take turns, as they do with a
model's layers.
"""

import mmap
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from kvpager.assemble import open_cache
from kvpager.attention.reference import ReferenceBackend
from kvpager.attention.select import select
from kvpager.bench.report import SEED
from kvpager.bench.scale import Load
from kvpager.cache.step import StepBatch
from kvpager.config import DEFAULT_PAGE_SIZE
from kvpager.errors import InvariantError
from kvpager.memory.arena import Arena, HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.rows import arena_bytes, layer_view, scale_view

TOLERANCE = 2e-2  # of the largest output, for bf16
TORCH_TOLERANCE = 5e-2  # torch's products round scores to bf16 before the softmax
_QUANTIZED_SCALE = 1 / 32  # of numbers that are normally distributed
_PATTERN_ITEMS = (4 << 20) + 1  # odd: every block holds a shift of its own


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's attention looks like: ``llama`` as in Llama 3 8B, ``smol`` as in SmolLM2 135M."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token in one layer, bf16."""
        return 2 * self.kv_heads * self.head_dim * 2


LLAMA = Shape("llama", 32, 8, 128)
SMOL = Shape("smol", 9, 3, 64)


class SmallPagesArena(HostArena):
    """A host arena without huge pages."""

    def __init__(self, num_blocks: int, block_stride: int) -> None:
        super().__init__(num_blocks, block_stride)
        self._mapping.madvise(mmap.MADV_NOHUGEPAGE)


@dataclass(frozen=True, slots=True)
class Contiguous:
    """One batch with its content in tensors: q [S, query_heads, new, dim], k and v [S, kv_heads, context, dim]."""

    q: Tensor
    k: Tensor
    v: Tensor


class PagedCase:
    """A context. ``run`` computes the step of one batch, the next one with every call."""

    def __init__(
        self,
        shape: Shape,
        load: Load,
        *,
        cold_bytes: int = 0,
        page_size: int = DEFAULT_PAGE_SIZE,
        is_shuffled: bool = True,
        has_huge_pages: bool = True,
        dtype: str = "bfloat16",
    ) -> None:
        self.shape, self.load = shape, load
        self.layout = KVLayout(1, shape.kv_heads, shape.head_dim, dtype, page_size)
        self.bytes_per_batch = load.sequences * load.context * self.layout.bytes_per_token
        self.num_batches = max(1, -(-cold_bytes // self.bytes_per_batch))
        pages = self.layout.num_pages(load.context) * load.sequences
        blocks = pages * self.num_batches
        arena = None if has_huge_pages else SmallPagesArena(blocks, self.layout.block_stride)
        self._stack = ExitStack()
        self._cache = self._stack.enter_context(
            open_cache(self.layout, num_blocks=blocks, arena=arena, prefix_cache=False)
        )
        if is_shuffled:
            ids = self._cache.pool.allocate(blocks)
            self._cache.pool.release(np.random.default_rng(SEED).permutation(ids))  # given out in that order again
        self._fill()
        self.batches = [self._open_step() for _ in range(self.num_batches)]
        self.rows = [self._new_rows(number) for number in range(self.num_batches)]
        self._expected: dict[int, Tensor] = {}
        backend = select(self.layout, "cpu")
        self.plans = [backend.plan(batch, self.arena) for batch in self.batches]
        self._turn = 0

    def __enter__(self) -> "PagedCase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def arena(self) -> Arena:
        return self._cache.arena

    @property
    def num_tokens(self) -> int:
        """New tokens of a batch."""
        return self.load.sequences * self.load.new_tokens

    def _fill(self) -> None:
        pattern = torch.randn(_PATTERN_ITEMS, generator=torch.Generator().manual_seed(SEED))
        match self.layout.dtype:
            case "int8":
                pattern = (pattern / _QUANTIZED_SCALE).clamp(-127, 127).to(torch.int8).view(torch.uint8)
            case "float8_e4m3":
                pattern = (pattern / _QUANTIZED_SCALE).to(torch.float8_e4m3fn).view(torch.uint8)
            case _:
                pattern = pattern.bfloat16()
        rows = arena_bytes(self.arena).view(pattern.dtype).view(-1)
        for first in range(0, len(rows), _PATTERN_ITEMS):
            part = rows[first : first + _PATTERN_ITEMS]
            part.copy_(pattern[: len(part)])
        if self.layout.is_quantized:
            scale_view(self.arena, self.layout, 0).fill_(_QUANTIZED_SCALE)

    def _open_step(self) -> StepBatch:
        sequences = [self._cache.sequence() for _ in range(self.load.sequences)]
        before = self.load.context - self.load.new_tokens
        with self._cache.step(dict.fromkeys(sequences, before)):
            pass
        step = self._cache.step(dict.fromkeys(sequences, self.load.new_tokens))
        return self._stack.enter_context(step).batch

    def _new_rows(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of the new tokens of a batch. Queries are long, so that few keys have most of the weight: a page
        that is left out then changes the result by more than the tolerance."""
        generator = torch.Generator().manual_seed(SEED + 1 + number)

        def rows(heads: int) -> Tensor:
            return torch.randn(self.num_tokens, heads, self.shape.head_dim, generator=generator)

        q, k, v = 3 * rows(self.shape.query_heads), rows(self.shape.kv_heads), rows(self.shape.kv_heads)
        return q.bfloat16(), k.bfloat16(), v.bfloat16()

    def run(self) -> Tensor:
        self._turn = (self._turn + 1) % self.num_batches
        return self.output(self._turn)

    def blocks(self, number: int) -> np.ndarray:
        """[S * pages] the blocks of a batch, page after page, one sequence after the other."""
        pages = self.layout.num_pages(self.load.context)
        return np.concatenate([table[:pages] for table in self.batches[number].tables[0]])

    def take_content_of(self, other: "PagedCase") -> None:
        """Copies what the tokens of another case hold. REQUIRES: the same load and layout."""
        to, source = arena_bytes(self.arena).numpy(), arena_bytes(other.arena).numpy()  # faster than torch here
        for number in range(self.num_batches):
            to[self.blocks(number)] = source[other.blocks(number)]

    def output(self, number: int) -> Tensor:
        """What the step of a batch gives: [tokens, query_heads, head_dim]."""
        return self.plans[number].run(0, *self.rows[number])

    def expected(self, number: int) -> Tensor:
        """What the step of a batch should give, computed in fp32: [tokens, query_heads, head_dim]."""
        if number not in self._expected:
            q, k, v = self.rows[number]
            self._expected[number] = ReferenceBackend().plan(self.batches[number], self.arena).run(0, q.float(), k, v)
        return self._expected[number]

    def check(self) -> None:
        """Raises InvariantError unless the first and the last batch give what the reference gives."""
        for number in sorted({0, self.num_batches - 1}):
            check_close(f"attention, {self.shape.name}", self.output(number), self.expected(number))

    def contiguous(self) -> list[Contiguous]:
        """The batches as plain tensors, in memory of the same kind (huge pages). REQUIRES: the steps were run."""
        found = []
        for number in range(self.num_batches):
            k, v = (_with_huge_pages(rows) for rows in self.gathered(number))
            found.append(Contiguous(self.queries(number), k, v))
        return found

    def queries(self, number: int) -> Tensor:
        """The queries of a batch, [S, query_heads, new, dim]."""
        q = self.rows[number][0].view(self.load.sequences, self.load.new_tokens, self.shape.query_heads, -1)
        return q.transpose(1, 2).contiguous()

    def gathered(self, number: int) -> tuple[Tensor, Tensor]:
        """K and V of a batch gathered by torch: [S, kv_heads, context, dim] each. Sequences are equally long."""
        view = layer_view(self.arena, self.layout, 0)
        pages = view.index_select(0, torch.from_numpy(self.blocks(number).astype(np.int64)))
        pages = pages.view(self.load.sequences, -1, *view.shape[1:])  # [S, pages, kv_heads, 2, page_size, dim]
        both = pages.permute(3, 0, 2, 1, 4, 5).reshape(2, *pages.shape[:1], *view.shape[1:2], -1, view.shape[-1])
        return both[0, :, :, : self.load.context], both[1, :, :, : self.load.context]


def _with_huge_pages(rows: Tensor) -> Tensor:
    arena = HostArena(1, rows.numel() * rows.element_size())
    copy = torch.from_numpy(arena.blocks[0]).view(rows.dtype).view(rows.shape)
    return copy.copy_(rows)


def check_close(what: str, found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Raises InvariantError unless the largest difference is within the tolerance."""
    error = float((found.float() - expected).abs().max() / expected.abs().max())
    if not error <= tolerance:
        raise InvariantError(f"{what}: the result is off by {error:.2g} of the largest value; it was not timed")
