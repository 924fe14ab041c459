"""New K and V rows in their slots, byte by byte as torch puts them there; rotary embedding as torch computes it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kvpager.native
from kvpager import ConfigError, KVLayout, open_cache
from kvpager.tiers.native_rows import rotary_tables, rotate_rows, write_rows
from kvpager.tiers.rows import FLOAT_DTYPE, TorchRows, cache_layer, layer_view

POISON = 0xA5
DTYPES = list(FLOAT_DTYPE)
# (kv_heads, head_dim, page_size, tokens): odd sizes first; the last three are large, two of them go past the caches
SHAPES = {
    "H1-D1-P1-T1": (1, 1, 1, 1),
    "H2-D20-P5-T33": (2, 20, 5, 33),
    "H3-D37-P7-T50": (3, 37, 7, 50),
    "H3-D64-P16-T100": (3, 64, 16, 100),
    "H2-D256-P128-T200": (2, 256, 128, 200),
    "H8-D128-P32-T1100": (8, 128, 32, 1100),
    "H4-D100-P3-T3000": (4, 100, 3, 3000),
}

Threads = Callable[[int], AbstractContextManager[None]]


class Writing:
    """A poisoned pool of three layers, the middle one of which is written, and where T tokens go: whole pages in random
    order, and some tokens alone."""

    def __init__(self, native: ModuleType, shape: str, dtype: str = "float32") -> None:
        self.kv_heads, self.head_dim, page_size, tokens = SHAPES[shape]
        self.layout = KVLayout(3, self.kv_heads, self.head_dim, dtype, page_size)
        pages = -(-tokens // page_size)
        self.cache = open_cache(self.layout, num_blocks=pages + 2)
        self.arena = self.cache.arena
        generator = np.random.default_rng(tokens)
        order = generator.permutation(pages + 2)
        positions = np.arange(tokens)
        if tokens > 40:  # a decode batch behind a prefill
            positions[-20:] = generator.permutation(positions[-20:])
        self.blocks = order[positions // page_size].astype(np.int32)
        self.slots = (positions % page_size).astype(np.int32)
        self.token_slots = native.TokenSlots(self.blocks, self.slots, pages + 2, page_size)
        self.layer = cache_layer(native, self.arena, self.layout, 1)
        self.tokens = tokens
        self.poison()

    def poison(self) -> None:
        self.arena.blocks[:] = POISON

    def rows(self, dtype: str, seed: int = 0, is_strided: bool = False) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.tokens, self.kv_heads, self.head_dim)
        if not is_strided:
            return (8 * torch.randn(shape, generator=generator)).to(FLOAT_DTYPE[dtype])
        wide = torch.randn(self.tokens, 3 * self.kv_heads + 1, self.head_dim + 3, generator=generator)
        return wide.to(FLOAT_DTYPE[dtype])[:, 1 : 2 * self.kv_heads : 2, 2:-1]

    def expected(self, k: Tensor, v: Tensor) -> np.ndarray:
        """The bytes of the pool if torch writes into a poisoned one."""
        kept = self.arena.blocks.copy()
        self.poison()
        view = layer_view(self.arena, self.layout, 1)
        blocks, slots = torch.from_numpy(self.blocks.astype(np.int64)), torch.from_numpy(self.slots.astype(np.int64))
        view[blocks, :, 0, slots], view[blocks, :, 1, slots] = k.to(view.dtype), v.to(view.dtype)
        found = self.arena.blocks.copy()
        self.arena.blocks[:] = kept
        return found


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotary embedding of the first elements of each row, in plain torch."""
    turned, rest = x[..., : cos.shape[1]], x[..., cos.shape[1] :]
    first, second = turned.chunk(2, dim=-1)
    both = turned * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
    return torch.cat([both.to(x.dtype), rest], dim=-1)


def tables(tokens: int, rotary_dim: int, dtype: str) -> tuple[Tensor, Tensor]:
    angles = torch.randn(tokens, rotary_dim, generator=torch.Generator().manual_seed(5))
    return torch.cos(angles).to(FLOAT_DTYPE[dtype]), torch.sin(angles).to(FLOAT_DTYPE[dtype])


@pytest.mark.parametrize("is_strided", [False, True], ids=["packed", "strided"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_the_caches_dtype(native: ModuleType, isa: str, shape: str, is_strided: bool) -> None:
    for dtype in ("bfloat16", "float32"):
        case = Writing(native, shape, dtype)
        k, v = case.rows(dtype, 1, is_strided), case.rows(dtype, 2)
        write_rows(native, case.layer, case.token_slots, k, v)
        assert np.array_equal(case.arena.blocks, case.expected(k, v))


@pytest.mark.parametrize("into", DTYPES)
@pytest.mark.parametrize("given", DTYPES)
def test_rows_are_converted_as_torch_does(native: ModuleType, isa: str, given: str, into: str) -> None:
    for shape in ("H3-D37-P7-T50", "H3-D64-P16-T100"):
        case = Writing(native, shape, into)
        k, v = case.rows(given, 1), case.rows(given, 2, is_strided=True)
        k[0, 0, : case.head_dim // 2] *= 1e-6  # subnormal in fp16
        k[1] *= 1e5  # infinite in fp16
        write_rows(native, case.layer, case.token_slots, k, v)
        assert np.array_equal(case.arena.blocks, case.expected(k, v))


@pytest.mark.parametrize("into", DTYPES)
def test_ties_go_to_even_and_nan_stays_nan(native: ModuleType, isa: str, into: str) -> None:
    case = Writing(native, "H3-D64-P16-T100", into)
    k, v = case.rows("float32", 1), case.rows("float32", 2)
    ties = torch.arange(64, dtype=torch.int32) * 0x1000 + 0x3F808000  # half a step of bf16, then of fp16
    k[0] = ties.view(torch.float32)
    write_rows(native, case.layer, case.token_slots, k, v)
    assert np.array_equal(case.arena.blocks, case.expected(k, v))
    k[3, 1, 5] = torch.nan
    v[2, 0, 63] = -torch.inf
    write_rows(native, case.layer, case.token_slots, k, v)
    view = layer_view(case.arena, case.layout, 1)
    found_k, found_v = (view[int(case.blocks[t]), :, half, int(case.slots[t])] for half, t in ((0, 3), (1, 2)))
    assert torch.equal(found_k.isnan(), k[3].isnan())
    assert found_v[0, 63] == -torch.inf


@pytest.mark.parametrize("tables_in", ["float32", "same"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_rotated_on_the_way(native: ModuleType, isa: str, dtype: str, tables_in: str) -> None:
    for shape, rotary_dim in [("H3-D64-P16-T100", 64), ("H3-D64-P16-T100", 24), ("H3-D37-P7-T50", 10)]:
        for into in ("float32", dtype):
            case = Writing(native, shape, into)
            k, v = case.rows(dtype, 1, is_strided=True), case.rows(dtype, 2)
            cos, sin = tables(case.tokens, rotary_dim, dtype if tables_in == "same" else "float32")
            write_rows(native, case.layer, case.token_slots, k, v, rotary_tables(native, cos, sin))
            assert np.array_equal(case.arena.blocks, case.expected(rotated(k, cos, sin), v))


@pytest.mark.parametrize("tables_in", ["float32", "same"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_are_rotated(native: ModuleType, isa: str, dtype: str, tables_in: str) -> None:
    for tokens, heads, dim, rotary_dim in [(1, 1, 2, 2), (17, 5, 37, 12), (70, 9, 64, 64), (900, 8, 128, 64)]:
        wide = torch.randn(tokens, 2 * heads, dim + 5, generator=torch.Generator().manual_seed(dim))
        wide = wide.to(FLOAT_DTYPE[dtype])
        before, x = wide.clone(), wide[:, ::2, 1 : dim + 1]
        cos, sin = tables(tokens, rotary_dim, dtype if tables_in == "same" else "float32")
        expected = rotated(x, cos, sin)
        rotary = rotary_tables(native, cos, sin)
        out = torch.empty_like(expected)
        assert rotate_rows(native, rotary, x, out) is out
        assert torch.equal(out, expected)
        assert torch.equal(wide, before)
        rotate_rows(native, rotary, x)
        assert torch.equal(x, expected)
        x.copy_(before[:, ::2, 1 : dim + 1])
        assert torch.equal(wide, before), "bytes around the rows have changed"


def test_threads_do_not_change_a_byte(native: ModuleType, isa: str, threads: Threads) -> None:
    case = Writing(native, "H8-D128-P32-T1100", "bfloat16")
    k, v = case.rows("bfloat16", 1), case.rows("bfloat16", 2)
    rotary = rotary_tables(native, *tables(case.tokens, 128, "float32"))
    found = []
    for count in (1, 2, 3):
        case.poison()
        with threads(count):
            write_rows(native, case.layer, case.token_slots, k, v, rotary)
        found.append(case.arena.blocks.copy())
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_no_tokens_write_nothing(native: ModuleType) -> None:
    case = Writing(native, "H2-D20-P5-T33")
    none = torch.empty(0, 2, 20)
    slots = native.TokenSlots(np.empty(0, np.int32), np.empty(0, np.int32), 4, 5)
    write_rows(native, case.layer, slots, none, none)
    assert (case.arena.blocks == POISON).all()


def test_rows_by_hand_are_the_same_without_kernels(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Writing(native, "H3-D64-P16-T100", "bfloat16")
    k, v = case.rows("bfloat16", 1).transpose(1, 2).contiguous().transpose(1, 2), case.rows("bfloat16", 2)
    rows = TorchRows(case.arena, case.layout)
    calls = []
    real = native.kv_write
    monkeypatch.setattr(native, "kv_write", lambda *args: (calls.append(1), real(*args)))
    for is_native in (True, False):
        if not is_native:
            monkeypatch.setattr(kvpager.native, "module", lambda: None)
        case.poison()
        rows.write(1, case.blocks, case.slots, k, v)
        assert np.array_equal(case.arena.blocks, case.expected(k, v))
        assert len(calls) == 1


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("blocks", "slots", "error", "message"),
    [
        (ids(0, 8), ids(0, 0), IndexError, r"blocks\[1\] is 8, outside 0 to 7"),
        (ids(-1), ids(0), IndexError, r"blocks\[0\] is -1"),
        (ids(0), ids(4), IndexError, r"slots\[0\] is 4, outside 0 to 3"),
        (ids(0, 1), ids(0), ValueError, "blocks and slots must be equally long"),
        (ids(0, 2, 0), ids(1, 1, 1), ValueError, "name a slot twice"),
        (ids(0, 0, 3, 0), ids(1, 2, 0, 2), ValueError, "name a slot twice"),
        (np.array([0.0]), ids(0), TypeError, "blocks must be int32 or int64"),
        (np.array([[0]]), ids(0), TypeError, "blocks"),
    ],
    ids=["block", "negative", "slot", "lengths", "twice", "twice-in-a-run", "float", "two-dimensional"],
)
def test_wrong_places_are_refused(
    native: ModuleType, blocks: np.ndarray, slots: np.ndarray, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        native.TokenSlots(blocks, slots, 8, 4)
    assert native.TokenSlots(ids(0, 0, 7), np.array([1, 2, 3]), 8, 4).tokens == 3


def change(**changes: Any) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (change(k=0), "k: rows need memory"),
        (change(v=0), "v: rows need memory"),
        (change(dtype="int8"), "dtype: rows must be float, not int8"),
        (change(dtype="float64"), "dtype"),
        (change(page_size=3), "page_size"),
        (change(num_blocks=100), "slots: made for more blocks"),
        (change(rotary=(32, 20)), "rotary: the tables have another number of tokens"),
        (change(rotary=(33, 22)), "rotary: rotary_dim is larger"),
    ],
    ids=lambda value: "-".join(f"{k}-{v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_wrong_calls_are_refused(native: ModuleType, changes: dict[str, Any], message: str) -> None:
    case = Writing(native, "H2-D20-P5-T33")
    rows = case.rows("float32")

    def call(
        k: int = rows.data_ptr(),
        v: int = rows.data_ptr(),
        dtype: str = "float32",
        page_size: int = 5,
        num_blocks: int = case.arena.num_blocks,
        rotary: tuple[int, int] = (33, 20),
    ) -> None:
        slots = native.TokenSlots(case.blocks, case.slots % page_size, num_blocks, page_size)
        cos, sin = tables(*rotary, "float32")
        native.kv_write(case.layer, slots, k, 40, 20, v, 40, 20, dtype, rotary_tables(native, cos, sin))

    call()
    case.poison()
    if "page_size" in changes:
        case.blocks, case.slots = case.blocks[:3], case.slots[:3]
    with pytest.raises(ValueError, match=message):
        call(**changes)
    assert (case.arena.blocks == POISON).all()


def test_wrong_tensors_are_refused(native: ModuleType) -> None:
    case = Writing(native, "H2-D20-P5-T33")
    rows = case.rows("float32")
    for k, v, message in [
        (rows[:32], rows[:32], r"k has shape \(32, 2, 20\), expected"),
        (rows, rows[:, :1], "k and v must be alike"),
        (rows, rows.bfloat16(), "k and v must be alike"),
        (rows.double(), rows.double(), "k must be a float tensor"),
        (rows[0], rows[0], "k must be a float tensor"),
        (rows.to("meta"), rows, "k must be a float tensor .* on cpu"),
    ]:
        with pytest.raises(ConfigError, match=message):
            write_rows(native, case.layer, case.token_slots, k, v)
    write_rows(native, case.layer, case.token_slots, rows, rows)


def test_wrong_rotations_are_refused(native: ModuleType) -> None:
    x = torch.zeros(4, 2, 8)
    cos, sin = tables(4, 8, "float32")
    rotary = rotary_tables(native, cos, sin)
    for make, message in [
        (lambda: rotary_tables(native, cos[:, :7].contiguous(), sin[:, :7].contiguous()), "rotary_dim must be even"),
        (lambda: rotary_tables(native, cos, sin[:3]), "cos and sin must be alike"),
        (lambda: rotary_tables(native, cos.t(), sin), "cos must be a float tensor"),
        (lambda: rotate_rows(native, rotary, x[:3]), "x has 3 tokens, the rotary tables have 4"),
        (lambda: rotate_rows(native, rotary, x, x.bfloat16()), "out must be like x"),
        (lambda: rotate_rows(native, rotary, x.transpose(1, 2)), "contiguous rows"),
        (lambda: rotate_rows(native, rotary, x[..., :6]), "rotary_dim is larger than head_dim"),
    ]:
        with pytest.raises((ConfigError, ValueError), match=message):
            make()
    rotate_rows(native, rotary, x)
