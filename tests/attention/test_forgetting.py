"""In-request eviction in a cache: what is attended to afterwards, which blocks come back, and what others notice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from kvpager import KVLayout, OutOfBlocks, PagedCache, native, open_cache
from kvpager.attention import AttentionBackend
from kvpager.attention.cpu import CpuBackend
from kvpager.attention.make_state import make_state
from kvpager.attention.reference import ReferenceBackend
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import StepBatch
from kvpager.config.attend import Attend, HeavyHitters, SinksAndWindow, SnapKV, describe
from tests.attention.bench import TOLERANCE, Bench, fill_arena
from tests.attention.oracle import attention
from tests.stamp import T

BACKENDS: list[type[AttentionBackend]] = [ReferenceBackend, *([CpuBackend] if native.module() else [])]
KINDS: list[Attend] = [SinksAndWindow(20, 4), HeavyHitters(28, 12, 4), SnapKV(24, 8, 4)]
BOUNDED = [kind for kind in KINDS if not isinstance(kind, SnapKV)]


class ForgettingBench(Bench):
    """Compares with attention to all but the pages that the state of a sequence has given back."""

    def __init__(self, cache: PagedCache, backend: AttentionBackend) -> None:
        super().__init__(cache, backend, 4)
        self.gone: dict[Sequence, set[int]] = {}

    def forgetting(self, tokens: list[int], kind: Attend, prompt_tokens: int) -> Sequence:
        seq = self.cache.sequence(tokens[:prompt_tokens])
        seq.append(tokens[prompt_tokens:])
        seq.attention = make_state(self.layout, kind, prompt_tokens)
        self.note(seq, set())
        return seq

    def note(self, seq: Sequence, gone: set[int]) -> None:
        """``gone`` grows by what the state of ``seq`` gives back."""
        state: Any = seq.attention
        ask, self.gone[seq] = type(state).pages_to_give_back, gone  # not of the instance: a fork has a copy of that

        def asked(group: int, length: int) -> np.ndarray:
            pages: np.ndarray = ask(state, group, length)
            gone.update(pages.tolist())
            return pages

        state.pages_to_give_back = asked

    def _compare(self, sequences: tuple[Sequence, ...], batch: StepBatch, layer: int, q: Tensor, out: Tensor) -> None:
        offsets = batch.offsets().tolist()
        for at, seq in enumerate(sequences):
            start, stop = int(batch.starts[at]), int(batch.stops[at])
            k, v = self._held(batch, at, layer, seq, stop)
            kept = ~np.isin(np.arange(stop) // self.layout.page_size, list(self.gone.get(seq, ())))
            rows = slice(offsets[at], offsets[at + 1])
            expected = attention(q[rows].double().numpy(), k[kept], v[kept], start - int((~kept).sum()))
            error = np.abs(out[rows].double().numpy() - expected).max() / np.abs(expected).max()
            assert error <= TOLERANCE[self.layout.dtype], f"layer {layer}, {start} to {stop}: error {error:.2e}"

    def run(self, seq: Sequence, chunks: list[int]) -> None:
        for count in chunks:
            self.step({seq: count})

    def blocks_of(self, seq: Sequence) -> int:
        return sum(len(table.mapped_blocks()) for table in seq.tables)


@contextmanager
def opened(
    backend: type[AttentionBackend] = BACKENDS[-1],
    page_size: int = 4,
    dtype: str = "float32",
    num_blocks: int = 80,
) -> Iterator[ForgettingBench]:
    layout = KVLayout(2, 2, 8, dtype, page_size)
    with open_cache(layout, num_blocks=num_blocks, debug=True) as cache:
        fill_arena(cache, 0xFF)
        yield ForgettingBench(cache, backend())
        cache.check()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize(("page_size", "dtype"), [(4, "float32"), (16, "bfloat16")], ids=str)
@pytest.mark.parametrize("kind", [*KINDS, SinksAndWindow(20, 0)], ids=describe)
def test_what_is_gone_is_not_attended_to_and_all_the_rest_is(
    kind: Attend, page_size: int, dtype: str, backend: type[AttentionBackend]
) -> None:
    with opened(backend, page_size, dtype) as bench:
        seq, other = bench.forgetting(T(1, 90), kind, 50), bench.cache.sequence(T(500, 560))
        bench.step({seq: 30, other: 40})
        bench.step({seq: 20})
        for _ in range(12):
            bench.step({seq: 1, other: 1})
        bench.step({seq: 3, other: 4})
        bench.run(seq, [1] * 10)
        assert bench.gone[seq]
        assert bench.blocks_of(seq) == bench.layout.num_pages(75) - len(bench.gone[seq])


@pytest.mark.parametrize("kind", KINDS, ids=describe)
def test_pages_that_others_share_stay_whole(kind: Attend) -> None:
    with opened() as bench:
        first = bench.cache.sequence(T(1, 70))
        bench.run(first, [50, *[1] * 10])
        seq = bench.forgetting(T(1, 50) + T(901, 930), kind, 50)
        assert seq.prefix_tokens >= 48
        bench.step({seq: 50 - seq.prefix_tokens})
        bench.run(seq, [1] * 25)
        assert len(bench.gone[seq]) > 4
        bench.run(first, [1] * 10)
        third = bench.cache.sequence(T(1, 50))
        assert third.prefix_tokens >= 48
        bench.run(third, [50 - third.prefix_tokens])
        seq.free()
        assert bench.cache.sequence(T(1, 70)).prefix_tokens >= 64


@pytest.mark.parametrize("kind", KINDS, ids=describe)
def test_nothing_that_was_computed_approximately_is_ever_found(kind: Attend) -> None:
    with opened() as bench:
        seq, plain = bench.forgetting(T(1, 50), kind, 20), bench.cache.sequence(T(1001, 1050))
        for count in [20, *[1] * 28]:
            bench.step({seq: count, plain: count})
        seq.free()
        plain.free()
        assert bench.cache.sequence(T(1001, 1050)).prefix_tokens == 48
        assert bench.cache.sequence(T(1, 50)).prefix_tokens <= 20


@pytest.mark.parametrize("kind", BOUNDED, ids=describe)
def test_a_context_larger_than_the_pool_runs_in_it(kind: Attend) -> None:
    with opened(num_blocks=16) as bench:
        seq = bench.forgetting(T(1, 130), kind, 90)
        bench.run(seq, [16] * 5 + [10])
        free = bench.cache.pool.num_free
        for _ in range(10):
            bench.run(seq, [1] * 4)
            assert bench.blocks_of(seq) <= 9
        assert abs(bench.cache.pool.num_free - free) <= 1
        seq.free()
        plain = bench.cache.sequence(T(2001, 2090))
        with pytest.raises(OutOfBlocks):
            bench.run(plain, [16] * 5)
        plain.free()


def test_snapkv_gives_blocks_back_after_the_prompt_and_keeps_what_is_generated() -> None:
    with opened() as bench:
        seq = bench.forgetting(T(1, 120), SnapKV(24, 8, 4), 80)
        bench.run(seq, [40, 39])
        assert bench.blocks_of(seq) == 20
        bench.run(seq, [1])
        assert bench.blocks_of(seq) == 6
        bench.run(seq, [1] * 20)
        assert bench.blocks_of(seq) == 6 + 5


@pytest.mark.parametrize("kind", KINDS, ids=describe)
def test_forks_forget_each_for_itself(kind: Attend) -> None:
    with opened(num_blocks=160) as bench:
        seq = bench.forgetting(T(1, 90), kind, 50)
        bench.run(seq, [50, 1, 1])
        seq.truncate(52)
        twin = seq.fork()
        bench.note(twin, set(bench.gone[seq]))
        twin.append(T(701, 740))
        seq.append(T(801, 840))
        for _ in range(20):
            bench.step({seq: 1, twin: 1})
        bench.run(twin, [1] * 8)
        if not isinstance(kind, SnapKV):
            assert len(bench.gone[seq]) > 6
            assert len(bench.gone[twin]) == len(bench.gone[seq]) + 2
        seq.free()
        bench.run(twin, [1] * 2)


def test_a_prompt_that_was_given_back_stays_findable_as_long_as_nobody_needs_its_blocks() -> None:
    with opened(num_blocks=24) as bench:
        cache, prompt = bench.cache, T(1, 80)
        seq = bench.forgetting([*prompt, *T(901, 920)], SnapKV(24, 8, 4), 80)
        bench.run(seq, [80, 1, 1])
        assert len(bench.gone[seq]) == 14
        second = bench.cache.sequence(T(1, 81))
        assert second.prefix_tokens == 80
        second.free()

        available = cache.num_available
        assert available == 24 - 7
        other = cache.sequence(T(2001, 2100))
        bench.run(other, [available * 4])
        assert cache.num_available == 0
        with pytest.raises(OutOfBlocks):
            bench.run(other, [1])
        other.free()
        bench.run(seq, [1] * 10)
        second = bench.cache.sequence(T(1, 81))
        assert second.prefix_tokens == min(bench.gone[seq]) * 4
        bench.run(second, [20])
