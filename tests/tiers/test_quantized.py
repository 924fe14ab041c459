"""int8 and fp8 rows: what is read back, how scales grow, and what is not finite."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kvpager.memory.arena import HostArena
from kvpager.memory.layout import QUANTIZED, KVLayout
from kvpager.tiers.quantized import TokenPlaces
from kvpager.tiers.rows import LayerRows, scale_view
from tests.quantized import NUMBERS, scale_of, stored_values, unit

LARGEST = {"int8": 127.0, "float8_e4m3": 448.0}
PAGE = 4
FINITE = st.floats(-(2.0**60), 2.0**60, width=32)


class Page:
    """Block 1 of a pool full of NaN: one layer, one head, ``dim`` numbers a row, K and V alike."""

    def __init__(self, dtype: str, dim: int, page_size: int = PAGE) -> None:
        self.layout = KVLayout(1, 1, dim, dtype=dtype, page_size=page_size)
        self.arena = HostArena(3, self.layout.block_stride)
        self.arena.fill(np.arange(3), 0xFF)

    def write(self, slot: int, values: object) -> None:
        rows = torch.as_tensor(values, dtype=torch.float32).view(-1, 1, self.layout.groups[0].head_dim)
        slots = np.arange(slot, slot + len(rows))
        places = TokenPlaces.of(np.ones(len(rows), int), slots, "cpu")
        LayerRows.of(self.arena, self.layout, 0).write(places, rows, rows)

    def read(self, stop: int) -> np.ndarray:
        """[stop, dim], the same from K and V."""
        k, v = stored_values(self.arena.blocks, self.layout, 0, [(1, slot) for slot in range(stop)])
        assert np.array_equal(k, v, equal_nan=True)
        return k[:, 0]

    @property
    def scale(self) -> float:
        scale = scale_of(self.arena.blocks, self.layout, 0, 1, 0, 0)
        assert math.isnan(scale) or math.frexp(scale)[0] == 0.5  # a power of two
        return scale


def fits(dtype: str, values: np.ndarray, scale: float) -> bool:
    return bool((np.abs(values) <= LARGEST[dtype] * scale).all())


@pytest.mark.parametrize("dtype", QUANTIZED)
@given(values=st.lists(FINITE, min_size=1, max_size=PAGE * 3))
def test_a_page_written_at_once_reads_back_within_half_a_unit_of_the_least_scale(
    dtype: str, values: list[float]
) -> None:
    page, dim = Page(dtype, 3), 3
    rows = np.zeros((-(-len(values) // dim), dim))
    rows.flat[: len(values)] = values
    page.write(0, rows)
    assert fits(dtype, rows, page.scale)
    assert page.scale == 2.0**-64 or not fits(dtype, rows, page.scale / 2)
    found = page.read(len(rows))
    assert (np.abs(found - rows) <= unit(page.layout, page.scale, rows) / 2).all()


@pytest.mark.parametrize("dtype", QUANTIZED)
@given(data=st.data())
def test_however_a_page_is_cut_into_calls_its_scale_is_the_same_and_its_values_within_one_unit(
    dtype: str, data: st.DataObject
) -> None:
    exponents = data.draw(st.lists(st.integers(-20, 20), min_size=8, max_size=8))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows = (generator.uniform(-1, 1, (8, 5)) * 2.0 ** np.array(exponents)[:, None]).astype(np.float32)
    page, at_once = Page(dtype, 5, 8), Page(dtype, 5, 8)
    at_once.write(0, rows)
    cuts = sorted({0, 8, *data.draw(st.lists(st.integers(1, 7), max_size=7))})
    scales = []
    for start, stop in pairwise(cuts):
        page.write(start, rows[start:stop])
        scales.append(page.scale)
    assert scales == sorted(scales)
    assert page.scale == at_once.scale
    largest_unit = unit(page.layout, page.scale, rows)
    assert (np.abs(page.read(8) - rows) < largest_unit).all()
    if dtype == "float8_e4m3":  # scaling down by a power of two changes no fraction of what stays above 2**-6
        normal = np.abs(at_once.read(8)) >= 2.0**-6 * page.scale * 2
        assert np.array_equal(page.read(8)[normal], at_once.read(8)[normal])


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_every_number_of_the_type_reads_back_exactly(dtype: str) -> None:
    numbers = NUMBERS[dtype][np.isfinite(NUMBERS[dtype]) & (NUMBERS[dtype] >= -LARGEST[dtype])]
    for scale in (1.0, 2.0**-30, 2.0**40):
        page = Page(dtype, len(numbers))
        page.write(0, numbers * scale)
        assert page.scale == scale
        assert np.array_equal(page.read(1)[0], numbers * scale)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_rounding_is_to_nearest_and_halves_go_to_even(dtype: str) -> None:
    step = 1.0 if dtype == "int8" else 32.0  # between e4m3 numbers above 256
    first = LARGEST[dtype] - 4 * step
    page = Page(dtype, 5)
    page.write(0, [first + step * 4, first + step * 0.5, first + step * 1.5, first + step * 0.49, first + step * 0.51])
    even = [LARGEST[dtype], *(first + step * (n if _is_even(dtype, first + step * n) else n + 1) for n in (0, 1))]
    assert page.read(1)[0].tolist() == [*even, first, first + step]


def _is_even(dtype: str, value: float) -> bool:
    return int(np.flatnonzero(NUMBERS[dtype] == value)[0]) % 2 == 0


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("value", [3.4028234663852886e38, 2.0**-149, 2.0**-66, 0.0, -0.0])
def test_the_ends_of_float32(dtype: str, value: float) -> None:
    page = Page(dtype, 1)
    page.write(0, [value])
    assert 2.0**-64 <= page.scale < 2.0**123
    assert abs(page.read(1)[0, 0] - value) <= unit(page.layout, page.scale, np.array(value)) / 2
    page.write(1, [1.0])
    assert abs(page.read(2)[0, 0] - value) <= unit(page.layout, page.scale, np.array(value)) / 2


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_the_first_slot_forgets_the_scale_that_was_there(dtype: str) -> None:
    page = Page(dtype, 2)
    page.write(0, [[1000.0, 2.0], [1.0, 1.0]])
    large = page.scale
    page.write(1, [[1.0, 1.0]])
    assert page.scale == large  # a smaller token needs no other one
    page.write(0, [[1.0, 0.5]])
    assert page.scale < large
    assert page.read(1)[0].tolist() == [1.0, 0.5]


def test_nan_and_infinity_in_fp8_stay_where_they_are() -> None:
    page = Page("float8_e4m3", 4)
    page.write(0, [[math.nan, 1.0, math.inf, -math.inf], [2.0, 3.0, 4.0, 448.0]])
    assert page.scale == 1.0  # they don't count
    assert np.array_equal(page.read(2), [[math.nan, 1.0, math.nan, math.nan], [2.0, 3.0, 4.0, 448.0]], equal_nan=True)
    page.write(2, [[4480.0, 0.0, 0.0, math.nan]])
    assert page.scale == 16.0  # and scaling down leaves them alone
    found = np.isnan(page.read(3))
    assert found.tolist() == [[True, False, True, True], [False] * 4, [False, False, False, True]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_an_int8_page_nan_until_it_begins_again(bad: float) -> None:
    page = Page("int8", 2)
    page.write(0, [[1.0, 2.0]])
    page.write(1, [[1.0, bad]])
    assert np.isnan(page.read(2)).all()
    page.write(2, [[5.0, 6.0]])
    assert np.isnan(page.read(3)).all()
    page.write(0, [[1.0, 2.0]])
    assert page.read(1)[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_what_lay_in_a_block_before_changes_nothing(dtype: str, byte: int) -> None:
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    clean, dirty = Page(dtype, 5, 8), Page(dtype, 5, 8)
    dirty.arena.fill(np.arange(3), byte)
    for page in (clean, dirty):
        page.write(0, rows[:2])
        page.write(2, rows[2:] * 8)
    assert clean.scale == dirty.scale
    assert np.array_equal(clean.read(6), dirty.read(6))
    assert set(dirty.arena.blocks[[0, 2]].flatten().tolist()) == {byte}


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_heads_halves_and_layers_have_scales_of_their_own(dtype: str) -> None:
    layout = KVLayout(3, 2, 4, dtype=dtype, page_size=PAGE)
    arena = HostArena(2, layout.block_stride)
    places = TokenPlaces.of(np.array([1]), np.array([0]), "cpu")
    exponents = torch.arange(12).view(3, 2, 2)
    for layer in range(3):
        k, v = (
            LARGEST[dtype] * 2.0 ** exponents[layer, :, half].float()[None, :, None].expand(1, 2, 4)
            for half in range(2)
        )
        LayerRows.of(arena, layout, layer).write(places, k, v)
    for layer in range(3):
        assert torch.equal(scale_view(arena, layout, layer)[1], 2.0 ** exponents[layer].float())
        assert torch.equal(scale_view(arena, layout, layer)[0], torch.zeros(2, 2))


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_pages_and_tokens_are_read_as_the_bytes_say(dtype: str, to: torch.dtype) -> None:
    layout = KVLayout(2, 2, 6, dtype=dtype, page_size=PAGE)
    arena = HostArena(5, layout.block_stride)
    blocks, slots = np.array([3, 3, 3, 3, 1, 1]), np.array([0, 1, 2, 3, 0, 1])
    k, v = torch.randn(2, 6, 2, 6, generator=torch.Generator().manual_seed(0))
    rows = LayerRows.of(arena, layout, 1)
    rows.write(TokenPlaces.of(blocks, slots, "cpu"), k, v)
    expected = stored_values(arena.blocks, layout, 1, zip(blocks.tolist(), slots.tolist(), strict=True))
    tokens = rows.tokens(torch.from_numpy(blocks), torch.from_numpy(slots))
    pages = rows.pages(torch.tensor([3, 1]), to).double().numpy()
    assert to in rows.exact_dtypes
    for half in range(2):
        assert np.array_equal(tokens[:, :, half].double().numpy(), expected[half])
        for token in range(6):
            assert np.array_equal(pages[token // PAGE, :, half, token % PAGE], expected[half][token])


@pytest.mark.parametrize(
    ("blocks", "slots", "pages", "page_of", "first", "begun"),
    [
        ([7], [0], [7], [0], [0], []),
        ([7], [3], [7], [0], [3], [0]),
        ([2, 2, 0, 5, 5], [2, 3, 0, 1, 2], [2, 0, 5], [0, 0, 1, 2, 2], [2, 0, 1], [0, 2]),
        ([0, 0], [0, 1], [0], [0, 0], [0], []),
    ],
)
def test_tokens_are_gathered_by_page(
    blocks: list[int], slots: list[int], pages: list[int], page_of: list[int], first: list[int], begun: list[int]
) -> None:
    found = TokenPlaces.of(np.array(blocks), np.array(slots), "cpu")
    columns: tuple[Tensor, ...] = (found.pages, found.page_of, found.first_slots, found.begun)
    assert [column.tolist() for column in columns] == [pages, page_of, first, begun]
