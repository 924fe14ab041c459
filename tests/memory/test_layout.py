"""What a token, a page and a block cost, how layers are grouped, and where each row lies."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager import ConfigError, KVLayout, LayerSpec
from kvpager.memory.layout import QUANTIZED

SMOLLM2 = {"layers": 30, "kv_heads": 3, "head_dim": 64}


def test_a_smollm2_token_costs_23040_bytes() -> None:
    layout = KVLayout(**SMOLLM2, dtype="bfloat16", page_size=16)
    assert layout.bytes_per_token == 30 * 3 * 2 * 64 * 2 == 23_040
    assert layout.page_bytes == layout.block_bytes == 16 * 23_040


@pytest.mark.parametrize(("dtype", "item_bytes"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_every_dtype_costs_its_own_bytes(dtype: str, item_bytes: int) -> None:
    layout = KVLayout(2, 3, 5, dtype=dtype, page_size=7)
    assert layout.item_bytes == item_bytes
    assert layout.bytes_per_token == 2 * 3 * 2 * 5 * item_bytes


@pytest.mark.parametrize(
    ("page_size", "tokens"),
    [(16, 16), ("16", 16), (" 16 ", 16), ("16KiB", 16384 // 1024), ("1 KiB", 1), ("1.99 KiB", 1), ("5000 B", 4)],
)
def test_a_page_is_given_in_tokens_or_in_bytes_rounded_down_to_whole_tokens(page_size: int | str, tokens: int) -> None:
    layout = KVLayout(4, 2, 32, dtype="bfloat16", page_size=page_size)
    assert layout.bytes_per_token == 1024
    assert layout.page_size == tokens


def test_a_page_smaller_than_one_token_is_refused_and_says_what_a_token_costs() -> None:
    with pytest.raises(ConfigError, match=r"smaller than one token \(23040 bytes\)"):
        KVLayout(**SMOLLM2, page_size="16KiB")
    assert KVLayout(**SMOLLM2, page_size="32KiB").page_size == 1


@pytest.mark.parametrize("page_size", [0, -1, True, "0", 1.5, "many", "", None])
def test_a_page_size_that_is_no_whole_positive_number_is_refused(page_size: object) -> None:
    with pytest.raises(ConfigError):
        KVLayout(1, 1, 1, page_size=page_size)
    assert KVLayout(1, 1, 1, page_size=1).page_size == 1


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "window"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "2", True])
def test_a_count_that_is_no_whole_positive_number_is_refused_by_name(name: str, value: object) -> None:
    good = {"layers": 1, "kv_heads": 1, "head_dim": 1, "window": 4}
    with pytest.raises(ConfigError, match=name):
        KVLayout(**{**good, name: value})
    KVLayout(**good)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_scales_count_in_pages_and_blocks_but_not_in_tokens(dtype: str) -> None:
    layout = KVLayout(**SMOLLM2, dtype=dtype, page_size=16)
    assert layout.is_quantized
    assert layout.bytes_per_token == 23_040 // 2
    assert layout.page_bytes == layout.block_bytes == 16 * 11_520 + 30 * 3 * 2 * 4 == 185_040
    assert not KVLayout(**SMOLLM2).is_quantized


@pytest.mark.parametrize(
    ("asked", "tokens"), [("40 B", 1), ("47 B", 1), ("48 B", 2), ("56 B", 3), ("1 KiB", 124), ("1031 B", 124)]
)
def test_a_quantized_page_given_in_bytes_has_room_for_its_scales(asked: str, tokens: int) -> None:
    """8 bytes a token and 2 layers x 2 heads x K and V scales: 32 bytes."""
    layout = KVLayout(2, 2, 1, dtype="int8", page_size=asked)
    assert layout.bytes_per_token == 8
    assert layout.page_size == tokens
    assert layout.page_bytes == 8 * tokens + 32


def test_a_quantized_page_without_room_for_one_token_is_refused_and_says_what_it_costs() -> None:
    with pytest.raises(ConfigError, match=r"smaller than one token \(40 bytes\)"):
        KVLayout(2, 2, 1, dtype="int8", page_size="39 B")


@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    dim=st.integers(1, 9),
    page_size=st.integers(1, 9),
    dtype=st.sampled_from(QUANTIZED),
)
def test_scales_lie_side_by_side_behind_the_rows_at_multiples_of_four(
    layers: int, heads: int, dim: int, page_size: int, dtype: str
) -> None:
    layout = KVLayout(layers, heads, dim, dtype=dtype, page_size=page_size)
    rows = layout.slot_offset(0, layers - 1, heads - 1, 1, page_size - 1) + dim
    offsets = [
        layout.scale_offset(0, layer, head, half)
        for layer in range(layers)
        for head in range(heads)
        for half in range(2)
    ]
    assert offsets[0] % 4 == 0
    assert 0 <= offsets[0] - rows < 4
    assert offsets == [offsets[0] + 4 * i for i in range(len(offsets))]
    assert offsets[-1] + 4 == layout.block_bytes == layout.page_bytes


def test_groups_of_different_shapes_have_their_own_scales() -> None:
    layout = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(4, 16)], dtype="int8", page_size=2)
    assert [layout.scale_offset(group, 0, 0, 0) for group in range(2)] == [2 * 16, 2 * 128]
    assert layout.block_bytes == 2 * 128 + 4 * 2 * 4
    assert layout.page_bytes == 2 * 16 + 2 * 4 + layout.block_bytes


def test_an_unknown_dtype_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        KVLayout(1, 1, 1, dtype="int3")


def test_a_layout_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one layer"):
        KVLayout.mixed([])


def test_a_uniform_model_is_one_group_in_layer_order() -> None:
    layout = KVLayout(**SMOLLM2)
    assert [group.layers for group in layout.groups] == [tuple(range(30))]
    assert [(place.group, place.index) for place in layout.places] == [(0, i) for i in range(30)]


def test_sliding_and_full_layers_are_cut_into_groups_of_equally_many_layers() -> None:
    """Five windowed layers to one full layer, as in Gemma 3: the sizes 10 and 2 have the greatest common divisor 2."""
    window, full = LayerSpec(2, 8, window=32), LayerSpec(2, 8)
    layout = KVLayout.mixed([full if i % 6 == 5 else window for i in range(12)])
    assert [group.window for group in layout.groups] == [None, 32, 32, 32, 32, 32]
    assert {len(group.layers) for group in layout.groups} == {2}
    assert layout.groups[0].layers == (5, 11)
    assert layout.block_bytes * layout.num_groups == layout.page_bytes
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(12))


def test_layers_without_a_common_divisor_get_groups_of_one() -> None:
    layout = KVLayout.mixed([LayerSpec(1, 4)] * 2 + [LayerSpec(1, 4, window=8)] * 3)
    assert [len(group.layers) for group in layout.groups] == [1] * 5


def test_where_head_shapes_differ_a_block_is_as_large_as_the_largest_group_needs() -> None:
    layout = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(4, 16)], dtype="float32", page_size=2)
    per_token = [1 * 2 * 8 * 4, 4 * 2 * 16 * 4]
    assert [group.bytes_per_token(4) for group in layout.groups] == per_token
    assert layout.block_bytes == max(per_token) * 2
    assert layout.bytes_per_token == sum(per_token)


def test_every_layer_finds_its_place() -> None:
    layout = KVLayout.mixed([LayerSpec(1, 4, window=8 if i % 3 else None) for i in range(9)])
    for layer, place in enumerate(layout.places):
        assert layout.groups[place.group].layers[place.index] == layer


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (1_048_576, 65_536)])
def test_pages_are_the_tokens_rounded_up(tokens: int, pages: int) -> None:
    assert KVLayout(1, 1, 1, page_size=16).num_pages(tokens) == pages


@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    dim=st.integers(1, 9),
    page_size=st.integers(1, 9),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_the_rows_of_a_block_lie_side_by_side_without_gap_or_overlap(
    layers: int, heads: int, dim: int, page_size: int, dtype: str
) -> None:
    layout = KVLayout(layers, heads, dim, dtype=dtype, page_size=page_size)
    offsets = [
        layout.slot_offset(0, layer, head, half, slot)
        for layer in range(layers)
        for head in range(heads)
        for half in range(2)
        for slot in range(page_size)
    ]
    assert offsets == [i * dim * layout.item_bytes for i in range(len(offsets))]
    assert offsets[-1] + dim * layout.item_bytes == layout.block_bytes
    assert layout.block_stride % 64 == 0
    assert 0 <= layout.block_stride - layout.block_bytes < 64


@given(st.lists(st.tuples(st.sampled_from([None, 4, 8]), st.sampled_from([1, 2])), min_size=1, max_size=24))
def test_groups_hold_every_layer_once_and_groups_of_one_shape_have_equal_bytes(
    shapes: list[tuple[int | None, int]],
) -> None:
    layout = KVLayout.mixed([LayerSpec(heads, 4, window) for window, heads in shapes])
    assert sorted(layer for group in layout.groups for layer in group.layers) == list(range(len(shapes)))
    for heads in (1, 2):
        sizes = {len(group.layers) for group in layout.groups if group.kv_heads == heads}
        members = [window for window, each in shapes if each == heads]
        classes = [members.count(window) for window in set(members)]
        assert sizes == ({math.gcd(*classes)} if classes else set())
    for group in layout.groups:
        assert {shapes[layer] for layer in group.layers} == {(group.window, group.kv_heads)}


DIFFERENT = [
    KVLayout(2, 2, 8),
    KVLayout(2, 2, 8, page_size=64),
    KVLayout(2, 2, 8, dtype="float16"),
    KVLayout(2, 2, 8, dtype="int8"),
    KVLayout(2, 2, 8, dtype="float8_e4m3"),
    KVLayout(2, 2, 8, window=8),
    KVLayout(2, 4, 4),
    KVLayout(4, 1, 8),
    KVLayout.mixed([LayerSpec(2, 8), LayerSpec(2, 8, window=8)]),
    KVLayout.mixed([LayerSpec(2, 8, window=8), LayerSpec(2, 8)]),
]


def test_the_description_tells_layouts_apart_and_is_the_same_for_equal_ones() -> None:
    assert len({layout.describe() for layout in DIFFERENT}) == len(set(DIFFERENT)) == len(DIFFERENT)
    assert KVLayout(2, 2, 8) == KVLayout.mixed([LayerSpec(2, 8)] * 2)
    assert hash(KVLayout(2, 2, 8)) == hash(KVLayout.mixed([LayerSpec(2, 8)] * 2))
    assert KVLayout(2, 2, 8) != "a layout"
    assert repr(KVLayout(2, 2, 8)) == f"KVLayout({KVLayout(2, 2, 8).describe()})"
