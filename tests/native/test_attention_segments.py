"""Attention of one sequence, segment by segment: bit for bit what the whole page list gives."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import native as native_module
from kvpager.attention.backend import LayerOptions

if native_module.module() is None:
    pytest.skip(f"no native kernels: {native_module.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import attend_partly
from kvpager.attention.native_call import NativeCall
from tests.native.paged import Paged

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


class Segmented:
    """The only sequence of a case. Pages in ``staged`` are given per segment, as copies that are overwritten behind."""

    def __init__(self, case: Paged, staged: np.ndarray, pages: np.ndarray | None = None) -> None:
        first = int(case.plan_arguments()["window"] and max(0, case.starts[0] - case.window + 1) // case.page_size)
        self.case, self.layer = case, case.layer()
        self.pages = np.arange(first, len(case.tables[0])) if pages is None else pages
        self.stride, self.origin = case.layer_arguments["block_stride"], case.layer_arguments["address"]
        self.addresses = self.origin + case.tables[0][self.pages].astype(np.int64) * self.stride
        self.is_staged = np.isin(self.pages, staged)
        self.kernel = native_module.module().SegmentedAttention(
            start=case.starts[0],
            num_queries=case.queries[0],
            addresses=np.where(self.is_staged, 0, self.addresses),
            origin=self.origin,
            pages=None if pages is None else pages.astype(np.int32),
            window=case.window or 0,
            page_size=case.page_size,
        )
        self.segments = self.kernel.segments(case.group)

    def begin(self) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(self.case.q, dtype=torch.float32), torch.empty(self.case.q.shape[:2])
        self.call = NativeCall.of(self.kernel, self.layer, self.case.q, out, self.case.options, lse)
        self.kernel.begin(*self.call.arguments)
        self.written = out, lse  # has to stay
        return out, lse

    def copies(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Entries of segments ``first`` to ``stop`` that have to be staged, and copies [n, bytes] of their blocks."""
        entries = np.arange(self.segments[first][0], self.segments[stop - 1][1])
        entries = entries[self.is_staged[entries]]
        blocks = self.case.pool.view(self.case.num_blocks, self.stride).numpy()
        return entries, blocks[self.case.tables[0][self.pages[entries]]]

    def run(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng(seed)
        out, lse = self.begin()
        at = 0
        while at < len(self.segments):
            stop = min(at + int(rng.integers(1, 4)), len(self.segments))
            entries, copies = self.copies(at, stop)
            self.kernel.stage(entries, copies.ctypes.data + self.stride * np.arange(len(entries)))
            parts = int(rng.integers(1, 4)) if self.kernel.num_items else 1
            for part in range(parts):
                self.kernel.add(at, stop, part, parts)
            copies[:] = 0xFF
            at = stop
        self.kernel.finish()
        return out, lse


def check_same_bits(case: Paged, pages: np.ndarray | None = None, seed: int = 0) -> None:
    plan = case.plan() if pages is None else case.subset([pages])
    expected = attend_partly(plan, case.layer(), case.q, case.options)
    staged = np.flatnonzero(np.random.default_rng(seed).random(len(case.tables[0])) < 0.5)
    segmented = Segmented(case, staged, pages)
    for turn in range(2):  # a second layer
        out, lse = segmented.run(seed + turn)
        assert torch.equal(out, expected[0])
        assert torch.equal(lse, expected[1])


def random_case(seed: int) -> Paged:
    rng = np.random.default_rng(seed)
    queries = int(rng.choice([1, 1, 2, 3, 20, 70, 300]))
    return Paged(
        [queries + int(rng.integers(0, 5000))],
        [queries],
        head_dim=int(rng.choice([7, 16, 32])),
        page_size=int(rng.choice([3, 4, 16, 24, 64])),
        dtype=str(rng.choice(["float32", "bfloat16", "float16"])),
        q_dtype=str(rng.choice(["float32", "bfloat16"])),
        window=[None, None, 70, 2048, 5000][rng.integers(5)],
        options=LayerOptions(
            scale=[None, -0.3][rng.integers(2)],
            softcap=[None, 5.0][rng.integers(2)],
            sinks=[None, SINKS][rng.integers(2)],
        ),
        order=seed,
    )


@pytest.mark.parametrize("seed", range(6))
def test_segments_give_the_bits_of_the_whole(isa: str, seed: int) -> None:
    check_same_bits(random_case(seed), seed=seed)


@pytest.mark.parametrize("seed", range(10, 14))
def test_so_do_segments_of_chosen_pages(isa: str, seed: int) -> None:
    case = random_case(seed)
    keep = np.flatnonzero(np.random.default_rng(seed).random(len(case.tables[0])) < [0.1, 0.9][seed % 2])
    check_same_bits(case, keep, seed)


@pytest.mark.parametrize("queries", [1, 30])
def test_no_pages_at_all(queries: int) -> None:
    case = Paged([90], [queries])
    out, lse = Segmented(case, np.empty(0), np.empty(0, np.int64)).run()
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("queries", [1, 30])
def test_a_quantized_cache_is_attended_to_where_it_lies(queries: int) -> None:
    case = Paged([2500], [queries], dtype="int8")
    whole, _ = attend_partly(case.plan(), case.layer(), case.q)
    assert torch.equal(Segmented(case, np.empty(0)).run()[0], whole)


@pytest.mark.parametrize("queries", [1, 30])
def test_one_wrong_byte_of_a_staged_page_changes_the_answer(queries: int) -> None:
    case = Paged([2500], [queries])
    segmented = Segmented(case, np.arange(3))
    right = segmented.run()[0].clone()
    out, _ = segmented.begin()
    entries, copies = segmented.copies(0, 1)
    assert entries.tolist() == [0, 1, 2]
    copies[1, 3] ^= 0x40
    segmented.kernel.stage(entries, copies.ctypes.data + segmented.stride * np.arange(3))
    segmented.kernel.add(0, len(segmented.segments))
    segmented.kernel.finish()
    assert not torch.equal(out, right)


@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(threads: Any, queries: int, count: int) -> None:
    case = Paged([5000], [queries], kv_heads=3, head_dim=64)
    with threads(1):
        expected = attend_partly(case.plan(), case.layer(), case.q)[0]
    with threads(count):
        assert torch.equal(Segmented(case, np.arange(40)).run()[0], expected)


def test_wrong_calls_are_refused(native: ModuleType) -> None:
    case = Paged([4500], [1])
    segmented = Segmented(case, np.arange(2))
    kernel, segments = segmented.kernel, segmented.segments
    assert len(segments) == 3
    with pytest.raises(ValueError, match="nothing was begun"):
        kernel.add(0, 1)
    segmented.begin()
    one = np.array([segmented.origin])
    for entries, addresses, reason in [
        ([2], one, "entry 2 is none that has to be staged"),
        ([-1], one, "entry -1 is none"),
        ([99999], one, "entry 99999 is none"),
        ([0], np.empty(0, np.int64), "expected one per entry"),
        ([0], np.array([0]), "needs memory"),
    ]:
        with pytest.raises(ValueError, match=reason):
            kernel.stage(np.array(entries), addresses)
    with pytest.raises(ValueError, match="the page of entry 0 is nowhere"):
        kernel.add(0, 1)
    for first, stop in [(1, 2), (0, 0), (0, 4), (-1, 1)]:
        with pytest.raises(ValueError, match="must follow one another"):
            kernel.add(first, stop)
    for part, parts, reason in [(1, 2, "parts must follow"), (0, 0, "parts must follow"), (0, 2, "have no parts")]:
        with pytest.raises(ValueError, match=reason):
            kernel.add(0, 1, part, parts)
    with pytest.raises(ValueError, match="segments are missing"):
        kernel.finish()
    whole, _ = attend_partly(case.plan(), case.layer(), case.q)
    assert torch.equal(segmented.run()[0], whole)
    with pytest.raises(ValueError, match="nothing was begun"):
        kernel.add(0, 1)


def test_parts_that_are_missing_are_noticed() -> None:
    segmented = Segmented(Paged([4500], [30]), np.empty(0))
    segmented.begin()
    segmented.kernel.add(0, 3, 0, 2)
    with pytest.raises(ValueError, match="segments are missing"):
        segmented.kernel.finish()
    with pytest.raises(ValueError, match="parts must follow"):
        segmented.kernel.add(0, 3)
    segmented.kernel.add(0, 3, 1, 2)
    segmented.kernel.finish()


def test_what_was_staged_counts_for_one_call_only() -> None:
    case = Paged([4500], [1], page_size=24)  # the page at the border belongs to two segments
    segmented = Segmented(case, np.array([85]))
    segmented.begin()
    entries, copies = segmented.copies(0, 1)
    assert entries.tolist() == [85]
    segmented.kernel.stage(entries, copies.ctypes.data + np.zeros(1, np.int64))
    segmented.kernel.add(0, 1)
    with pytest.raises(ValueError, match="the page of entry 85 is nowhere"):
        segmented.kernel.add(1, 2)


def test_wrong_arguments_are_refused(native: ModuleType) -> None:
    good: dict[str, Any] = {"start": 8, "num_queries": 1, "addresses": np.array([1, 1, 1]), "origin": 1, "page_size": 4}
    assert native.SegmentedAttention(**good).num_tokens == 1
    for change, reason in [
        ({"addresses": np.array([1, 1, 1], np.int32)}, "addresses: expected int64"),
        ({"addresses": np.array([1])}, "too few blocks"),
        ({"pages": np.array([0, 1], np.int32)}, "pages: expected one per block"),
        ({"pages": np.array([0, 2, 1], np.int32)}, "must increase"),
        ({"num_queries": -1}, "query_offsets must not decrease"),
        ({"start": -1}, "is out of range"),
        ({"window": -1}, "window must not be negative"),
        ({"page_size": 0}, "page_size must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=reason):
            native.SegmentedAttention(**{**good, **change})
