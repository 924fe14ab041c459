"""Pages kept as int8 or fp8 below a float cache: how far off they come back, and that nothing else changes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import native
from kvpager.errors import ConfigError, TierError, WrongContent
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import QUANTIZED, KVLayout, LayerSpec
from kvpager.tiers import quantized_pages
from kvpager.tiers.quantized_pages import QuantizedPages
from kvpager.tiers.rows import FLOAT_DTYPE, layer_view
from tests.quantized import scale_of, stored_values, unit

FLOATS = list(FLOAT_DTYPE)
LAYOUTS = {
    "uniform": ([LayerSpec(3, 64)] * 5, 16),
    "odd": ([LayerSpec(2, 3)] * 3, 5),
    "one-number": ([LayerSpec(1, 1)], 1),
    "windows": ([LayerSpec(2, 8), LayerSpec(2, 8, window=8), LayerSpec(2, 8), LayerSpec(2, 8, window=8)], 4),
    "shapes": ([LayerSpec(1, 6), LayerSpec(3, 10), LayerSpec(1, 6, window=9)], 4),
    "wide": ([LayerSpec(1, 300)] * 2, 3),  # wider than the native writer takes
}


@pytest.fixture(params=["native", "torch"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "module", lambda: None)
    elif native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    return request.param


class Pages:
    """One block of each layer group with numbers in it; what they are is known by ``values``."""

    def __init__(self, name: str, dtype: str, code: str, size: float = 1.0) -> None:
        specs, page_size = LAYOUTS[name]
        self.layout = KVLayout.mixed(specs, dtype=dtype, page_size=page_size)
        self.codec = QuantizedPages(self.layout, code)
        self.arena = HostArena(self.layout.num_groups, self.layout.block_stride)
        self.back = HostArena(self.layout.num_groups, self.layout.block_stride)
        self.pages = np.full((self.layout.num_groups, self.codec.page_bytes), 0xA5, np.uint8)
        for arena in (self.arena, self.back):
            arena.fill(np.arange(self.layout.num_groups), 0xA5)
        generator = torch.Generator().manual_seed(0)
        for layer in range(self.layout.layers):
            rows = self.rows(self.arena, layer)
            values = torch.randn(rows.shape, generator=generator) * size
            values *= 2.0 ** torch.randint(-6, 3, (*rows.shape[:2], 1, 1), generator=generator)  # heads differ
            rows.copy_(values)

    def rows(self, arena: HostArena, layer: int) -> Tensor:
        """[kv_heads, 2, page_size, head_dim]."""
        return layer_view(arena, self.layout, layer)[self.layout.places[layer].group]

    def values(self, arena: HostArena, layer: int) -> np.ndarray:
        return self.rows(arena, layer).double().numpy()

    def encode(self) -> None:
        for group in range(self.layout.num_groups):
            self.codec.encode(self.arena.blocks[group], self.pages[group], group)

    def decode(self) -> None:
        for group in range(self.layout.num_groups):
            self.codec.decode(self.pages[group], self.back.blocks[group], group)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("code", QUANTIZED)
def test_values_come_back_within_half_a_unit(name: str, dtype: str, code: str, writer: str) -> None:
    pages = Pages(name, dtype, code)
    before = pages.arena.blocks.copy()
    pages.encode()
    pages.decode()
    layout = pages.codec.layout
    for layer in range(layout.layers):
        group = layout.places[layer].group
        sent, found = pages.values(pages.arena, layer), pages.values(pages.back, layer)
        for head in range(sent.shape[0]):
            for half in range(2):
                scale = scale_of(pages.pages, layout, layer, group, head, half)
                allowed = unit(layout, scale, sent[head, half]) / 2
                if dtype == "float16":
                    allowed = allowed + 2.0**-25  # its own subnormal numbers
                assert (np.abs(found[head, half] - sent[head, half]) <= allowed).all()
    assert np.array_equal(pages.arena.blocks, before)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("code", QUANTIZED)
def test_an_encoded_page_is_a_block_of_the_quantized_layout(name: str, code: str, writer: str) -> None:
    """Read by code that shares no line with the codec; bfloat16 holds all of these numbers exactly."""
    pages = Pages(name, "bfloat16", code)
    pages.encode()
    pages.decode()
    layout = pages.codec.layout
    assert layout.describe() == pages.layout.describe().replace(
        "dtype=bfloat16", f"dtype={code} scales=float32/layer,head,K|V"
    )
    assert pages.codec.page_bytes == layout.block_stride
    for layer in range(layout.layers):
        where = [(layout.places[layer].group, slot) for slot in range(layout.page_size)]
        expected = np.stack(stored_values(pages.pages, layout, layer, where))  # [2, tokens, kv_heads, head_dim]
        assert np.array_equal(pages.values(pages.back, layer), expected.transpose(2, 0, 1, 3))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("code", QUANTIZED)
def test_both_writers_give_the_same_page_however_it_is_cut(
    name: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    pages = Pages(name, "float32", code)
    pages.encode()
    by_native = pages.pages.copy()
    pages.decode()
    found = pages.back.blocks.copy()
    for constant in ("_PIECE", "_TORCH_PIECE", "_AT_ONCE"):
        monkeypatch.setattr(quantized_pages, constant, 100)
    for _ in range(2):
        pages.pages[:] = 0x11
        pages.encode()
        pages.decode()
        assert np.array_equal(pages.pages, by_native)
        assert np.array_equal(pages.back.blocks, found)
        monkeypatch.setattr(native, "module", lambda: None)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("code", QUANTIZED)
def test_pages_and_blocks_depend_on_nothing_but_what_was_given(name: str, dtype: str, code: str) -> None:
    """Also the bytes that lie behind the rows: what a block held before must not go anywhere."""
    pages = Pages(name, dtype, code)
    pages.encode()
    pages.decode()
    first = pages.pages.copy(), pages.back.blocks.copy()
    pages.pages[:] = 0
    pages.encode()
    pages.back.blocks[:] = 0x3C
    pages.decode()
    assert np.array_equal(pages.pages, first[0])
    assert np.array_equal(pages.back.blocks, first[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("code", QUANTIZED)
def test_the_largest_numbers_stay_finite(dtype: str, code: str, writer: str) -> None:
    largest = torch.finfo(FLOAT_DTYPE[dtype]).max
    pages = Pages("odd", dtype, code)
    for layer in range(3):
        rows = pages.rows(pages.arena, layer)
        rows[:] = largest
        rows[1] = -largest
        rows[..., 0, 0] = 0.0
    pages.encode()
    pages.decode()
    for layer in range(3):
        found = pages.rows(pages.back, layer)
        assert bool(found.isfinite().all())
        assert bool((found[..., 1:, :].abs() >= largest * 0.93).all())
        assert not found[..., 0, 0].any()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("code", QUANTIZED)
@pytest.mark.parametrize("value", [0.0, 2.0**-24])
def test_the_smallest_numbers(dtype: str, code: str, value: float, writer: str) -> None:
    pages = Pages("odd", dtype, code)
    for layer in range(3):
        pages.rows(pages.arena, layer)[:] = value
    pages.encode()
    pages.decode()
    for layer in range(3):
        assert bool((pages.rows(pages.back, layer) == value).all())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["windows", "wide"])
@pytest.mark.parametrize("code", QUANTIZED)
def test_a_page_that_is_not_finite_is_not_encoded(name: str, code: str, bad: float, writer: str) -> None:
    pages = Pages(name, "bfloat16", code)
    last = pages.layout.layers - 1
    kept = pages.rows(pages.arena, last)[-1, 1, -1, -1].clone()
    pages.rows(pages.arena, last)[-1, 1, -1, -1] = bad
    with pytest.raises(TierError, match="not finite"):
        pages.encode()
    pages.rows(pages.arena, last)[-1, 1, -1, -1] = kept
    pages.encode()


@pytest.mark.parametrize("code", QUANTIZED)
def test_a_page_that_was_never_encoded_is_wrong_content(code: str) -> None:
    pages = Pages("uniform", "bfloat16", code)
    pages.encode()
    for changed in (pages.codec.layout.scale_offset(0, 4, 2, 1), 0):
        wrong = pages.pages[0].copy()
        if changed:
            wrong[changed : changed + 4] = 0xFF  # a scale of NaN
        elif code == "float8_e4m3":
            wrong[0] = 0xFF
        else:
            continue
        with pytest.raises(WrongContent, match="not finite"):
            pages.codec.decode(wrong, pages.back.blocks[0])
    pages.decode()


@pytest.mark.parametrize("code", QUANTIZED)
def test_a_second_round_changes_nothing(code: str) -> None:
    """A page that goes down and comes up again and again stays what it was after the first time."""
    pages = Pages("uniform", "bfloat16", code)
    pages.encode()
    pages.decode()
    once = pages.back.blocks.copy()
    pages.codec.encode(pages.back.blocks[0], pages.pages[0])
    pages.decode()
    assert np.array_equal(pages.back.blocks, once)


def test_what_a_user_can_not_ask_for() -> None:
    assert QuantizedPages(KVLayout(1, 1, 8), "int8").is_lossy
    with pytest.raises(ConfigError, match="int8 or float8_e4m3, not as 'bfloat16'"):
        QuantizedPages(KVLayout(1, 1, 8), "bfloat16")
    with pytest.raises(ConfigError, match="the cache holds int8 already"):
        QuantizedPages(KVLayout(1, 1, 8, dtype="int8"), "int8")
