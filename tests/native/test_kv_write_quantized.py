"""The native writer of quantized rows: the bytes of the plain torch one, whatever the instruction set and threads."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.quantized import TokenPlaces
from kvpager.tiers.rows import FLOAT_DTYPE, LayerRows, cache_layer, scale_view

DTYPES = ["int8", "float8_e4m3"]
NUM_BLOCKS = 24


class Writers:
    """Two arenas full of NaN, one written by the native writer and one by the torch one."""

    def __init__(self, native: ModuleType, layout: KVLayout, byte: int = 0xFF) -> None:
        self.native, self.layout = native, layout
        self.arenas = [HostArena(NUM_BLOCKS, layout.block_stride) for _ in range(2)]
        for arena in self.arenas:
            arena.fill(np.arange(NUM_BLOCKS), byte)

    def write(self, layer: int, blocks: np.ndarray, slots: np.ndarray, k: Tensor, v: Tensor) -> None:
        """With both; then compares every byte of both arenas."""
        write_natively(self.native, self.arenas[0], self.layout, layer, blocks, slots, k, v)
        LayerRows.of(self.arenas[1], self.layout, layer).write(TokenPlaces.of(blocks, slots, "cpu"), k, v)
        assert self.arenas[0].blocks.tobytes() == self.arenas[1].blocks.tobytes()

    def values(self, layer: int, blocks: np.ndarray, slots: np.ndarray) -> Tensor:
        """[tokens, kv_heads, 2, head_dim] as the native writer left them."""
        rows = LayerRows.of(self.arenas[0], self.layout, layer)
        return rows.tokens(torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(slots.astype(np.int64)))


def write_natively(
    native: ModuleType,
    arena: HostArena,
    layout: KVLayout,
    layer: int,
    blocks: np.ndarray,
    slots: np.ndarray,
    k: Tensor,
    v: Tensor,
    rotary: object = None,
) -> None:
    where = native.TokenSlots(blocks, slots, arena.num_blocks, layout.page_size)
    name = str(k.dtype).removeprefix("torch.")
    strides = k.stride()[:2], v.stride()[:2]
    native.kv_write(
        cache_layer(native, arena, layout, layer),
        where,
        k.data_ptr(),
        *strides[0],
        v.data_ptr(),
        *strides[1],
        name,
        rotary,
    )


def rows(generator: np.random.Generator, tokens: int, layout: KVLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """K and V of very different magnitudes from token to token, so that scales grow."""
    group = layout.groups[0]
    drawn = generator.standard_normal((2, tokens, group.kv_heads, group.head_dim))
    drawn *= np.exp2(generator.uniform(-12, 12, (2, tokens, 1, 1)))
    k, v = torch.from_numpy(drawn.astype(np.float32)).to(dtype)
    return k, v


def places(lengths: list[tuple[int, int]], page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens start .. stop-1 of each sequence; sequence i has blocks of its own, in a mixed order."""
    order = np.random.default_rng(0).permutation(NUM_BLOCKS)
    share = NUM_BLOCKS // len(lengths)
    positions = [np.arange(start, stop) for start, stop in lengths]
    blocks = [order[at * share + each // page_size] for at, each in enumerate(positions)]
    return np.concatenate(blocks), np.concatenate(positions) % page_size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", list(FLOAT_DTYPE))
@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "page_size"), [(1, 1, 4), (3, 64, 16), (2, 37, 5), (2, 128, 1), (1, 256, 40), (2, 20, 70)]
)
def test_it_writes_the_bytes_of_the_torch_writer(
    native: ModuleType, isa: str, dtype: str, source: str, kv_heads: int, head_dim: int, page_size: int
) -> None:
    layout = KVLayout(2, kv_heads, head_dim, dtype=dtype, page_size=page_size)
    writers, generator = Writers(native, layout), np.random.default_rng(head_dim)
    steps = [
        [(0, 0), (0, 2)],
        [(0, 3), (2, 3)],
        [(3, 2 * page_size), (3, 4)],
        [(2 * page_size, 3 * page_size + 2), (4, 5)],
    ]
    for lengths in steps:
        blocks, slots = places(lengths, page_size)
        for layer in range(2):
            k, v = rows(generator, len(blocks), layout, FLOAT_DTYPE[source])
            writers.write(layer, blocks, slots, k, v)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float_rounds_as_in_torch(native: ModuleType, isa: str, dtype: str) -> None:
    """All fp16 numbers and their halves, NaN and infinity among them, in pages of their own magnitude."""
    layout = KVLayout(1, 1, 128, dtype=dtype, page_size=64)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16).float()
    for factor in (1.0, 1.5, 1 + 2.0**-23, 2.0**-70, 2.0**100):
        k = (every * factor).view(-1, 1, 128)
        writers = Writers(native, layout)
        for tokens in k.split(NUM_BLOCKS * 64):
            blocks, slots = np.divmod(np.arange(len(tokens)), 64)
            writers.write(0, blocks, slots, tokens, -tokens)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_visible(native: ModuleType, isa: str, dtype: str, bad: float) -> None:
    layout = KVLayout(1, 2, 19, dtype=dtype, page_size=4)
    writers = Writers(native, layout)
    blocks, slots = np.full(3, 5), np.arange(3)
    k, v = rows(np.random.default_rng(0), 3, layout, torch.float32)
    k[1, 1, 18] = bad
    writers.write(0, blocks, slots, k, v)
    found = writers.values(0, blocks, slots)
    assert found[1, 1, 0, 18].isnan()
    found[:, 1, 0] = 0.0  # the head and half that hold it
    assert found.isfinite().all()
    writers.write(0, blocks[:1], np.array([3]), k[:1], v[:1])  # after it: the page stays NaN, or the value does
    assert writers.values(0, blocks, slots)[1, 1, 0, 18].isnan()
    writers.write(0, blocks, slots, v, v)
    assert writers.values(0, blocks, slots).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_don_t_depend_on_threads(
    native: ModuleType, dtype: str, threads: Callable[[int], AbstractContextManager[None]]
) -> None:
    layout = KVLayout(1, 8, 128, dtype=dtype, page_size=70)
    blocks, slots = places([(0, 12 * 70)], 70)
    assert 2 * len(blocks) * 8 * 128 > 1 << 20  # enough for several threads
    k, v = rows(np.random.default_rng(0), len(blocks), layout, torch.bfloat16)
    found = []
    for count in (1, 2, 5):
        with threads(count):
            writers = Writers(native, layout)
            writers.write(0, blocks, slots, k, v)
            found.append(writers.arenas[0].blocks.tobytes())
    assert found[0] == found[1] == found[2]


def test_rows_may_have_any_strides(native: ModuleType, isa: str) -> None:
    layout = KVLayout(1, 3, 16, dtype="int8", page_size=4)
    blocks, slots = places([(0, 9)], 4)
    k, v = rows(np.random.default_rng(0), 9, layout, torch.bfloat16)
    k_heads_first = k.transpose(0, 1).contiguous().transpose(0, 1)
    v_wide = torch.full((9, 5, 32), float("nan"), dtype=torch.bfloat16)
    v_wide[:, 1:4, 8:24] = v
    plain, strided = Writers(native, layout), Writers(native, layout)
    plain.write(0, blocks, slots, k, v)
    strided.write(0, blocks, slots, k_heads_first, v_wide[:, 1:4, 8:24])
    assert plain.arenas[0].blocks.tobytes() == strided.arenas[0].blocks.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_layers_and_unused_slots_are_left_alone(native: ModuleType, isa: str, dtype: str) -> None:
    layout = KVLayout(3, 2, 24, dtype=dtype, page_size=8)
    writers = Writers(native, layout, byte=0x11)
    blocks, slots = np.full(3, 7), np.arange(3)
    k, v = rows(np.random.default_rng(0), 3, layout, torch.float32)
    writers.write(1, blocks, slots, k, v)
    arena = writers.arenas[0]
    changed = arena.blocks != 0x11
    assert set(np.flatnonzero(changed.any(axis=1))) == {7}
    allowed = np.zeros(layout.block_stride, bool)
    for head in range(2):
        for half in range(2):
            first = layout.slot_offset(0, 1, head, half, 0)
            allowed[first : first + 3 * 24] = True
            scale = layout.scale_offset(0, 1, head, half)
            allowed[scale : scale + 4] = True
    assert changed[7][allowed].any()
    assert not changed[7][~allowed].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cut_into_calls_changes_no_scale_and_no_byte_by_more_than_a_unit(
    native: ModuleType, isa: str, dtype: str
) -> None:
    layout = KVLayout(1, 2, 33, dtype=dtype, page_size=16)
    blocks, slots = places([(0, 40)], 16)
    k, v = rows(np.random.default_rng(0), 40, layout, torch.float32)
    at_once, one_by_one = Writers(native, layout), Writers(native, layout)
    at_once.write(0, blocks, slots, k, v)
    for t in range(40):
        one_by_one.write(0, blocks[t : t + 1], slots[t : t + 1], k[t : t + 1], v[t : t + 1])
    scales = [scale_view(each.arenas[0], layout, 0)[blocks[[0, 16, 32]]] for each in (at_once, one_by_one)]
    assert torch.equal(*scales)
    found = [each.values(0, blocks, slots) for each in (at_once, one_by_one)]
    unit = scales[0][torch.arange(40) // 16][..., None] * (1.0 if dtype == "int8" else 2.0**-9)
    assert not torch.equal(*found)  # the rows do make scales grow
    assert ((found[0] - found[1]).abs() <= unit).all()


@pytest.mark.parametrize("table_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rotary_dim", [2, 10, 36])
def test_keys_are_rotated_first(native: ModuleType, isa: str, rotary_dim: int, table_dtype: str) -> None:
    layout = KVLayout(1, 2, 36, dtype="int8", page_size=4)
    blocks, slots = places([(0, 9)], 4)
    k, v = rows(np.random.default_rng(0), 9, layout, torch.bfloat16)
    angles = torch.rand(9, rotary_dim // 2, generator=torch.Generator().manual_seed(0)).repeat(1, 2)
    cos, sin = angles.cos().to(FLOAT_DTYPE[table_dtype]), angles.sin().to(FLOAT_DTYPE[table_dtype])
    rotary = native.Rotary(
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        token_stride=rotary_dim,
        tokens=9,
        rotary_dim=rotary_dim,
        dtype=table_dtype,
    )
    rotated = k.clone()
    native.rotate(rotary, 2, 36, k.data_ptr(), 72, 36, rotated.data_ptr(), 72, 36, "bfloat16")
    assert not torch.equal(rotated, k)
    together, apart = Writers(native, layout), Writers(native, layout)
    apart.write(0, blocks, slots, rotated, v)
    write_natively(native, together.arenas[0], layout, 0, blocks, slots, k, v, rotary)
    assert together.arenas[0].blocks.tobytes() == apart.arenas[0].blocks.tobytes()


def test_tokens_of_a_page_out_of_order_are_refused_before_anything_is_written(native: ModuleType) -> None:
    layout = KVLayout(1, 1, 8, dtype="int8", page_size=4)
    writers = Writers(native, layout)
    k, v = rows(np.random.default_rng(0), 3, layout, torch.float32)
    before = writers.arenas[0].blocks.tobytes()
    for blocks, slots in (([1, 2, 1], [0, 0, 1]), ([1, 1, 1], [1, 0, 2]), ([2, 1, 1], [0, 3, 2])):
        with pytest.raises(ValueError, match=r"slots: .* must follow one another"):
            write_natively(native, writers.arenas[0], layout, 0, np.array(blocks), np.array(slots), k, v)
    assert writers.arenas[0].blocks.tobytes() == before
    writers.write(0, np.array([1, 1, 2]), np.array([0, 1, 0]), k, v)


def test_rows_that_are_quantized_already_are_refused(native: ModuleType) -> None:
    layout = KVLayout(1, 1, 8, dtype="int8", page_size=4)
    writers = Writers(native, layout)
    with pytest.raises(ValueError, match="rows must be float"):
        writers.write(0, np.zeros(1, int), np.zeros(1, int), *torch.zeros(2, 1, 1, 8, dtype=torch.int8))
