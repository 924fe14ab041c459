"""Attention mass per page: the native kernel and the slow version against fp64, page by page."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import KVLayout, native
from kvpager.attention.backend import LayerOptions
from kvpager.attention.page_mass import is_readable, page_masses
from kvpager.attention.page_view import PageView
from kvpager.cache.non_resident import NonResidentPages
from kvpager.memory.arena import HostArena
from kvpager.tiers.quantized import TokenPlaces
from kvpager.tiers.rows import TORCH_DTYPE, LayerRows, layer_view
from kvpager.types import TierKind

NATIVE = native.module()
ISAS = ["off", *(NATIVE.available_isas() if NATIVE else [])]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.choose(request.param)
    yield request.param
    native.choose("auto")


def readable_pages(view: PageView) -> np.ndarray:
    pages = np.arange(len(view.blocks))
    return pages[is_readable(view, pages)]


class Case:
    """A sequence of random keys, ``length`` tokens of which the last ``queries`` are new, in blocks of any order."""

    def __init__(self, layout: KVLayout, length: int, queries: int, query_heads: int, seed: int = 0) -> None:
        self.layout, self.length, self.queries = layout, length, queries
        self.group = layout.groups[0]
        rng = np.random.default_rng(seed)
        pages = layout.num_pages(length)
        self.arena = HostArena(pages + 2, layout.block_stride)
        self.arena.fill(np.arange(pages + 2), 0xFF)  # NaN
        self.blocks = rng.permutation(pages + 2)[:pages].astype(np.int32)
        self.keys = torch.zeros(layout.layers, length, self.group.kv_heads, self.group.head_dim, dtype=torch.float64)
        for layer in range(layout.layers):
            view = layer_view(self.arena, layout, layer)
            for page, block in enumerate(self.blocks.tolist()):
                first = page * layout.page_size
                count = min(layout.page_size, length - first)
                rows = rng.standard_normal((count, self.group.kv_heads, self.group.head_dim))
                stored = torch.from_numpy(rows).to(TORCH_DTYPE[layout.dtype])
                view[block, :, 0, :count] = stored.transpose(0, 1)
                self.keys[layer, first : first + count] = stored.double()
        self.q = torch.from_numpy(rng.standard_normal((queries, query_heads, self.group.head_dim))).float()
        self.rest: NonResidentPages | None = None

    def move_to_host(self, pages: list[int]) -> None:
        """These pages have no block any more; their bytes lie elsewhere in memory. What their blocks held is NaN."""
        count, columns = len(pages), len(self.blocks)
        self.host = np.empty((count, self.layout.block_stride), np.uint8)
        self.rest = NonResidentPages(
            np.zeros(columns, np.uint8),
            np.zeros(columns, np.int32),
            np.zeros(columns, np.int64),
            np.zeros((columns, self.layout.layers), np.uint64),
            np.zeros(columns, bool),
        )
        for at, page in enumerate(pages):
            self.host[at] = self.arena.blocks[self.blocks[page]]
            self.arena.blocks[self.blocks[page]] = 0xFF
            self.rest.tier[page] = TierKind.HOST
            self.rest.address[page] = self.host[at].ctypes.data
            self.blocks[page] = -1

    @property
    def view(self) -> PageView:
        start = self.length - self.queries
        return PageView(self.layout, self.arena, 0, 0, start, self.queries, self.blocks, self.rest, None, None)

    def found(self, layer: int, pages: np.ndarray, q: Tensor, options: LayerOptions, step: int = 1) -> np.ndarray:
        return page_masses(self.view, layer, pages, q, self.length - self.queries, step, options)

    def expected(self, layer: int, pages: np.ndarray, options: LayerOptions, step: int = 1) -> np.ndarray:
        masses = np.zeros((self.group.kv_heads, len(pages)))
        heads = self.q.shape[1]
        for i in range(0, self.queries, step):
            position = self.length - self.queries + i
            for head in range(heads):
                shared = head * self.group.kv_heads // heads
                scores = np.full(self.layout.num_pages(self.length) * self.layout.page_size, -math.inf)
                first = 0 if self.group.window is None else max(0, position - self.group.window + 1)
                keys = self.keys[layer, first : position + 1, shared].numpy()
                dim = self.group.head_dim
                dots = keys @ self.q[i, head].double().numpy() * (dim**-0.5 if options.scale is None else options.scale)
                scores[first : position + 1] = (
                    dots if options.softcap is None else options.softcap * np.tanh(dots / options.softcap)
                )
                given = scores.reshape(-1, self.layout.page_size)[pages]
                if np.isfinite(given).any():
                    weights = np.exp(given - given.max())
                    masses[shared] += weights.sum(axis=1) / weights.sum()
        return masses


def check(case: Case, options: LayerOptions, pages: np.ndarray | None = None, step: int = 1) -> None:
    pages = readable_pages(case.view) if pages is None else pages
    for layer in range(case.layout.layers):
        found = case.found(layer, pages, case.q[::step], options, step)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, case.expected(layer, pages, options, step), rtol=2e-5, atol=1e-6)


def random_case(seed: int) -> tuple[Case, LayerOptions]:
    rng = np.random.default_rng(seed)
    kv_heads, group = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3, 4, 5, 7]))
    layout = KVLayout(
        layers=int(rng.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=int(rng.choice([1, 7, 16, 31, 40, 64, 128, 256])),
        dtype=str(rng.choice(["float32", "bfloat16", "float16"])),
        page_size=int(rng.choice([1, 3, 4, 16, 70, 128])),
        window=[None, None, 1, 9, 60][rng.integers(5)],
    )
    length = int(rng.integers(1, 150))
    options = LayerOptions(scale=[None, 0.4][rng.integers(2)], softcap=[None, 3.0][rng.integers(2)])
    return Case(layout, length, min(length, int(rng.choice([1, 2, 17]))), kv_heads * group, seed), options


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes_agree_with_fp64(isa: str, seed: int) -> None:
    case, options = random_case(seed)
    check(case, options)
    check(case, options, step=3)


@pytest.mark.parametrize("q_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_queries_of_any_float_type_and_strides(isa: str, q_dtype: torch.dtype) -> None:
    case = Case(KVLayout(2, 2, 16, "bfloat16", 4), 30, 5, 4)
    case.q = case.q.to(q_dtype).float()
    strided = case.q.to(q_dtype).transpose(0, 1).contiguous().transpose(0, 1)
    columns = case.q.to(q_dtype).transpose(1, 2).contiguous().transpose(1, 2)
    pages = readable_pages(case.view)
    for q in (strided, columns):
        expected = case.expected(1, pages, LayerOptions())
        np.testing.assert_allclose(case.found(1, pages, q, LayerOptions()), expected, rtol=2e-5, atol=1e-6)


def test_each_query_row_has_one_in_all(isa: str) -> None:
    case = Case(KVLayout(1, 2, 16, "bfloat16", 4), 203, 6, 6)
    masses = case.found(0, readable_pages(case.view), case.q, LayerOptions(sinks=torch.ones(6)))
    np.testing.assert_allclose(masses.sum(axis=1), 6 * 3, rtol=1e-5)


def test_mass_is_shared_out_among_the_pages_given_only(isa: str) -> None:
    case = Case(KVLayout(1, 2, 16, "float32", 4), 100, 3, 4)
    check(case, LayerOptions(), np.array([0, 3, 4, 11, 24]))
    assert case.found(0, np.empty(0, np.int64), case.q, LayerOptions()).shape == (2, 0)
    assert not case.found(0, np.array([0, 3]), case.q[:0], LayerOptions()).any()


def test_what_no_query_sees_has_no_mass(isa: str) -> None:
    case = Case(KVLayout(1, 1, 8, "float32", 4), 40, 8, 2)
    assert case.found(0, np.array([9]), case.q[:4], LayerOptions()).tolist() == [[0.0]]
    assert case.found(0, np.array([8]), case.q[:4], LayerOptions()).sum() == pytest.approx(8)


def test_pages_on_the_host_are_read_where_they_lie(isa: str) -> None:
    for dtype in ("float32", "bfloat16"):
        case = Case(KVLayout(2, 2, 16, dtype, 4), 50, 3, 4)
        before = case.found(1, readable_pages(case.view), case.q, LayerOptions())
        case.move_to_host([1, 2, 7])
        check(case, LayerOptions())
        assert case.found(1, readable_pages(case.view), case.q, LayerOptions()).tobytes() == before.tobytes()


def test_readable_are_pages_with_a_block_or_an_address() -> None:
    case = Case(KVLayout(1, 1, 8, "float32", 4), 40, 1, 1)
    case.move_to_host([1, 2, 7])
    assert case.rest is not None
    case.rest.address[2] = 0  # on disk
    case.blocks[4] = -1  # gone for good
    assert readable_pages(case.view).tolist() == [0, 1, 3, 5, 6, 7, 8, 9]


@pytest.mark.skipif(NATIVE is None, reason=native.why_not())
def test_the_bits_do_not_depend_on_the_threads() -> None:
    case = Case(KVLayout(1, 2, 64, "bfloat16", 16), 5000, 4, 6)
    pages, before = readable_pages(case.view), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(case.found(0, pages, case.q, LayerOptions()).tobytes())
    torch.set_num_threads(before)
    assert len(set(found)) == 1


def test_quantized_keys_are_measured_as_the_values_they_stand_for() -> None:
    case = Case(KVLayout(1, 2, 16, "float32", 4), 21, 2, 4)
    pages = readable_pages(case.view)
    masses = {}
    for dtype in ("float32", "int8"):
        layout = KVLayout(1, 2, 16, dtype, 4)
        arena = HostArena(len(case.blocks), layout.block_stride)
        at = np.arange(case.length)
        k = case.keys[0].float()
        LayerRows.of(arena, layout, 0).write(TokenPlaces.of(at // 4, at % 4, "cpu"), k, k)
        blocks = np.arange(len(case.blocks), dtype=np.int32)
        view = PageView(layout, arena, 0, 0, case.length - 2, 2, blocks, None, None, None)
        masses[dtype] = page_masses(view, 0, pages, case.q, case.length - 2, 1, LayerOptions())
    np.testing.assert_allclose(masses["int8"], masses["float32"], rtol=0.05, atol=5e-3)
    assert masses["int8"].tobytes() != masses["float32"].tobytes()
