"""How KV bytes lie in a block, and what a token, a page and a block cost. Knows no pool and no device.

One block holds one page of every layer of its *layer group*, contiguous:

    block := layer 0 | layer 1 | ... | layer L-1        (the layers of the group, in order)
    layer := head 0 | head 1 | ... | head H-1           (KV heads)
    head  := K | V
    K, V  := slot 0 | slot 1 | ... | slot P-1           (P = page_size tokens)
    slot  := head_dim elements

Where elements are quantized (int8, float8_e4m3: one byte), a value is element * scale, and the scales of the page lie
behind the rows, at the next multiple of 4 bytes:

    block  := layer 0 | ... | layer L-1 | scales
    scales := layer 0 | ... | layer L-1
    layer  := head 0 K, V | head 1 K, V | ... | head H-1 K, V        (float32: 8 bytes a layer and head)

so that moving a page between tiers is one contiguous copy, and a kernel takes a strided view of one layer.

Layers with a sliding window keep only their last pages, so they need page tables of their own: layers with the same
head shape and the same window form a *layer class*, and classes are cut into *groups* with equally many layers
(the greatest common divisor of the class sizes) wherever shapes are equal, so that every group's block has the same
bytes and all groups share one pool. Where head shapes differ, blocks are as large as the largest group needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvpager.config import DEFAULT_PAGE_SIZE, parse_size
from kvpager.errors import ConfigError

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3": 1}
QUANTIZED = ("int8", "float8_e4m3")
SCALE_BYTES = 4
BLOCK_ALIGNMENT = 64  # bytes: a cache line, and what vector loads want


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The KV shape of one model layer. ``window``: tokens a query sees, itself included; None is all of them."""

    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share page tables: ``layers`` are model layer numbers, in the order they lie in a block."""

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int | None = None

    def bytes_per_token(self, item_bytes: int) -> int:
        """K and V of one token in all layers of the group, bytes."""
        return len(self.layers) * self.kv_heads * 2 * self.head_dim * item_bytes

    @property
    def num_scales(self) -> int:
        """Scales of a quantized page: one per layer, head and half."""
        return len(self.layers) * self.kv_heads * 2


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a model layer lies: ``group`` number, and its ``index`` inside that group's blocks."""

    group: int
    index: int


class KVLayout:
    """Shape and cost of a model's KV cache.

    ``KVLayout(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", page_size=16)`` for a uniform model;
    ``KVLayout.mixed([LayerSpec(...), ...])`` where layers differ. ``page_size`` is in tokens, or a size in bytes of one
    page over all layers such as ``"16KiB"`` (rounded down to whole tokens; scales count).

    ``dtype`` "int8" and "float8_e4m3" are lossy: half the bytes of bfloat16, and 8 more per page, layer and KV head for
    scales. SmolLM2-135M at 16 tokens a page: 720 bytes on 184,320, or 0.4 %.

    Raises ConfigError for a count below 1, an unknown dtype, or a page smaller than one token.
    """

    __slots__ = ("block_bytes", "block_stride", "dtype", "groups", "item_bytes", "layers", "page_size", "places")

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: str = "bfloat16",
        page_size: int | str = DEFAULT_PAGE_SIZE,
        window: int | None = None,
    ) -> None:
        _check_counts(layers=layers, kv_heads=kv_heads, head_dim=head_dim)
        self._build([LayerSpec(kv_heads, head_dim, window)] * layers, dtype, page_size)

    @classmethod
    def mixed(
        cls, specs: Sequence[LayerSpec], dtype: str = "bfloat16", page_size: int | str = DEFAULT_PAGE_SIZE
    ) -> "KVLayout":
        """A layout for layers that differ in window or head shape; ``specs[i]`` is model layer i."""
        layout = cls.__new__(cls)
        layout._build(specs, dtype, page_size)
        return layout

    def _build(self, specs: Sequence[LayerSpec], dtype: str, page_size: int | str) -> None:
        if not specs:
            raise ConfigError("a layout needs at least one layer")
        for spec in specs:
            window = 1 if spec.window is None else spec.window
            _check_counts(kv_heads=spec.kv_heads, head_dim=spec.head_dim, window=window)
        if dtype not in ITEM_BYTES:
            raise ConfigError(f"KV dtype {dtype!r} is not supported; choose one of {', '.join(ITEM_BYTES)}")
        self.dtype = dtype
        self.item_bytes = ITEM_BYTES[dtype]
        self.layers = len(specs)
        self.groups = _group_layers(specs)
        self.page_size = self._page_tokens(page_size)
        self.block_bytes = max(self._group_bytes(group, self.page_size) for group in self.groups)
        self.block_stride = _aligned(self.block_bytes, BLOCK_ALIGNMENT)
        places: list[LayerPlace | None] = [None] * self.layers
        for number, group in enumerate(self.groups):
            for index, layer in enumerate(group.layers):
                places[layer] = LayerPlace(number, index)
        self.places: tuple[LayerPlace, ...] = tuple(place for place in places if place is not None)

    def _page_tokens(self, page_size: int | str) -> int:
        if isinstance(page_size, str) and not page_size.strip().isdigit():
            asked = parse_size(page_size)
            tokens = asked // self.bytes_per_token
            while tokens and self._page_bytes(tokens) > asked:
                tokens -= 1
            if tokens < 1:
                raise ConfigError(
                    f"page_size {page_size!r} is smaller than one token ({self._page_bytes(1)} bytes); ask for more"
                )
            return tokens
        tokens = int(page_size) if isinstance(page_size, str) else page_size
        _check_counts(page_size=tokens)
        return tokens

    def _group_bytes(self, group: LayerGroup, page_size: int) -> int:
        """What one page of ``group`` fills of a block."""
        rows = group.bytes_per_token(self.item_bytes) * page_size
        return _aligned(rows, SCALE_BYTES) + group.num_scales * SCALE_BYTES if self.is_quantized else rows

    def _page_bytes(self, page_size: int) -> int:
        return sum(self._group_bytes(group, page_size) for group in self.groups)

    @property
    def is_quantized(self) -> bool:
        """Whether elements mean something only with their scale. What is written then reads back rounded."""
        return self.dtype in QUANTIZED

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    @property
    def bytes_per_token(self) -> int:
        """K and V of one token over all layers, bytes (SmolLM2-135M in bf16: 30 x 3 x 2 x 64 x 2 = 23,040).

        Scales belong to pages, so they count in ``page_bytes`` and ``block_bytes`` only.
        """
        return sum(group.bytes_per_token(self.item_bytes) for group in self.groups)

    @property
    def page_bytes(self) -> int:
        """One page over all layers, bytes: what its blocks in all groups hold, without alignment."""
        return self._page_bytes(self.page_size)

    def num_pages(self, tokens: int) -> int:
        """Pages that hold ``tokens`` token positions."""
        return -(-tokens // self.page_size)

    def slot_offset(self, group: int, layer_index: int, head: int, half: int, slot: int) -> int:
        """Byte offset inside a block of one slot: ``half`` 0 is K, 1 is V."""
        shape = self.groups[group]
        row = ((layer_index * shape.kv_heads + head) * 2 + half) * self.page_size + slot
        return row * shape.head_dim * self.item_bytes

    def scale_offset(self, group: int, layer_index: int, head: int, half: int) -> int:
        """Byte offset inside a block of one scale (float32). REQUIRES: the layout is quantized."""
        assert self.is_quantized
        shape = self.groups[group]
        rows = shape.bytes_per_token(self.item_bytes) * self.page_size
        number = (layer_index * shape.kv_heads + head) * 2 + half
        return _aligned(rows, SCALE_BYTES) + number * SCALE_BYTES

    def describe(self) -> str:
        """One stable line that names everything the bytes depend on: part of every content key."""
        groups = ";".join(
            f"layers={','.join(map(str, g.layers))} heads={g.kv_heads} dim={g.head_dim} window={g.window}"
            for g in self.groups
        )
        scales = " scales=float32/layer,head,K|V" if self.is_quantized else ""
        return f"block-first/layer,head,K|V,slot,dim dtype={self.dtype}{scales} page_size={self.page_size} {groups}"

    def __repr__(self) -> str:
        return f"KVLayout({self.describe()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KVLayout) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(self.describe())


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")


def _group_layers(specs: Sequence[LayerSpec]) -> tuple[LayerGroup, ...]:
    """Cuts layer classes into groups of equally many layers per head shape; full attention comes first."""
    classes: dict[LayerSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        classes.setdefault(spec, []).append(layer)
    size_of_shape: dict[tuple[int, int], int] = {}
    for spec, members in classes.items():
        shape = (spec.kv_heads, spec.head_dim)
        size_of_shape[shape] = math.gcd(size_of_shape.get(shape, 0), len(members))
    groups = []
    for spec, members in sorted(classes.items(), key=lambda item: (item[0].window is not None, item[1][0])):
        size = size_of_shape[spec.kv_heads, spec.head_dim]
        for start in range(0, len(members), size):
            layers = tuple(members[start : start + size])
            groups.append(LayerGroup(layers, spec.kv_heads, spec.head_dim, spec.window))
    return tuple(groups)
