"""One long sequence to decode: some of its pages have blocks, the others lie in a tier. Knows what was attended to and
what that took; compares nothing with anything.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from kvpager.assemble import open_cache
from kvpager.attention.make_state import make_state
from kvpager.attention.select import select
from kvpager.bench.paged_case import Shape
from kvpager.bench.random_pages import RandomPages
from kvpager.bench.report import SEED
from kvpager.cache.sequence import Sequence
from kvpager.config.attend import EXACT, Attend
from kvpager.config.tiers import TierOptions
from kvpager.errors import InvariantError
from kvpager.memory.layout import KVLayout
from kvpager.tiers.mover import Mover

_TOKENS_AT_ONCE = 2048
_MORE_TOKENS = 4096  # that may be decoded
_SETTLE_SECONDS = 120.0
_WINDOW = "64MiB"


@dataclass(frozen=True, slots=True)
class Long:
    """``context`` tokens in ``layers`` layers; ``resident``: the share of its pages that has blocks.

    ``similarity``: of the queries of any two steps, as a cosine.
    """

    shape: Shape
    context: int
    layers: int
    page_size: int
    resident: float = 1.0
    attend: Attend = EXACT
    similarity: float = 0.0

    @property
    def layout(self) -> KVLayout:
        return KVLayout(self.layers, self.shape.kv_heads, self.shape.head_dim, "bfloat16", self.page_size)

    @property
    def pages(self) -> int:
        return self.context // self.page_size

    @property
    def resident_pages(self) -> int:
        return int(self.pages * self.resident)

    @property
    def num_bytes(self) -> int:
        """K and V of all tokens."""
        return self.context * self.layout.bytes_per_token

    @property
    def part_bytes(self) -> int:
        """One layer's bytes of a page."""
        return self.layout.page_bytes // self.layers

    def all_resident(self) -> "Long":
        return replace(self, resident=1.0)

    def attending(self, attend: Attend) -> "Long":
        return replace(self, attend=attend)

    def unlike(self) -> "Long":
        """Each query has nothing to do with that before."""
        return replace(self, similarity=0.0)


@dataclass(slots=True)
class Streamed:
    """What steps read through the window, and how long they waited for it."""

    steps: int = 0
    bytes: int = 0
    stalled: float = 0.0


class LongCase:
    """A context. ``decode`` computes one step of one token: its books, and the attention of all layers."""

    def __init__(self, long: Long, tier: TierOptions | None = None, mover: Mover | None = None) -> None:
        self.long, self.layout = long, long.layout
        self.streamed = Streamed()
        self._stack = ExitStack()
        growth = 2 * (_TOKENS_AT_ONCE // long.page_size) + _MORE_TOKENS // long.page_size
        self.cache = self._stack.enter_context(
            open_cache(
                self.layout,
                num_blocks=long.resident_pages + growth,
                tiers=() if tier is None else (tier,),
                window=None if tier is None else _WINDOW,
                fingerprint=b"kvpager bench",
                mover=mover,
            )
        )
        try:
            self._backend = select(self.layout, "cpu")
            self._generator = torch.Generator().manual_seed(SEED + 1)
            self._common_q = self._normal(long.shape.query_heads)
            self.seq = self._written()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "LongCase":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _written(self) -> Sequence:
        long = self.long
        limit = long.resident_pages if long.resident < 1 else None
        seq = self.cache.sequence(range(long.context), resident_limit=limit)
        seq.attention = make_state(self.layout, long.attend)
        at_once = min(_TOKENS_AT_ONCE // long.page_size, long.resident_pages // 2)
        RandomPages(self.layout).extend(self.cache, seq, long.context, at_once)
        if self.cache.lower is not None and not self.cache.lower.settle(_SETTLE_SECONDS):
            raise InvariantError("pages do not reach their tier; it was not timed")
        return seq

    def decode(self) -> list[Tensor]:
        """One step. What each layer gives: [1, query_heads, head_dim]."""
        shape = self.long.shape
        q = self._next_q()
        rows = [(self._normal(shape.kv_heads), self._normal(shape.kv_heads)) for _ in range(self.long.layers)]
        self.seq.append(0)
        with self.cache.step({self.seq: 1}) as step:
            plan = self._backend.plan(step.batch, self.cache.arena)
            outputs = [plan.run(layer, q, k, v) for layer, (k, v) in enumerate(rows)]
            touched = step.batch.touched
        self.streamed.steps += 1
        if touched is not None:
            self.streamed.bytes += int(touched.bytes.sum())
            self.streamed.stalled += float(touched.seconds.sum())
        return outputs

    def streamed_by(self, steps: int) -> Streamed:
        """By so many steps that are made now."""
        self.streamed = Streamed()
        for _ in range(steps):
            self.decode()
        return self.streamed

    def non_resident_share(self) -> float:
        """Of the pages, as they are now."""
        pages = self.seq.length // self.layout.page_size
        return 1 - len(self.seq.tables[0].mapped_blocks()) / pages

    def _next_q(self) -> Tensor:
        near = self.long.similarity
        return (near**0.5 * self._common_q + (1 - near) ** 0.5 * self._normal(self.long.shape.query_heads)).bfloat16()

    def _normal(self, heads: int) -> Tensor:
        return torch.randn(1, heads, self.long.shape.head_dim, generator=self._generator).bfloat16()


def check_same(what: str, some: LongCase, others: LongCase) -> None:
    """Raises InvariantError unless both decode the same bits. REQUIRES: of the same content, equally far decoded."""
    for layer, (a, b) in enumerate(zip(some.decode(), others.decode(), strict=True)):
        if not torch.equal(a, b):
            raise InvariantError(f"{what}: layer {layer} gives other bits than without paging; it was not timed")
