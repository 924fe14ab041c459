"""Pages as int8 or fp8 (e4m3) below a float cache: a codec of whole blocks. Knows no tiers and no keys.

Encoding is the quantized cache's own writer (tiers/quantized.py says how scales are chosen and how far off values are),
given all tokens of a page at once. In a block, layers follow one another like the heads of one layer do, so one call
writes all of them, as one layer of layers * kv_heads heads:

    values a unit of the scale apart are stored; a value comes back at most half a unit off

Where such a number would lie beyond the largest of the cache's type, it comes back as that largest one. float16 rounds
once more what lies below 2**-14, where its own numbers are further apart.

A page with NaN or infinity is not encoded: int8 would make NaN of everything that shares its scale. Nothing here uses
more than one thread.
"""

from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np

from kvpager import native
from kvpager.errors import TierError, WrongContent
from kvpager.memory.layout import KVLayout
from kvpager.tiers.codec import encoded_layout

_PIECE = (1 << 19) - 1  # elements given to a kernel at once: for more it would ask other threads
_TORCH_PIECE = 1 << 14  # K, and as many V: for more torch would ask other threads
_AT_ONCE = 1 << 16  # numbers decoded at once, so that they stay in a core's cache
_MAX_NATIVE_DIM = 256
_NAN_CODE = 0x7F  # of e4m3, beside its sign
_LARGEST_CODE = {"int8": 128.0, "float8_e4m3": 448.0}
_LARGEST = {"float32": 3.4028234663852886e38, "bfloat16": 3.3895313892515355e38, "float16": 65504.0}


class QuantizedPages:
    """Blocks of ``layout`` as blocks of the same layout in ``dtype``, "int8" or "float8_e4m3"."""

    is_lossy = True

    def __init__(self, layout: KVLayout, dtype: str) -> None:
        self.name = dtype
        self.layout = encoded_layout(layout, dtype)
        self.page_bytes = self.layout.block_stride
        self._shapes = [_Shape.of(layout, self.layout, group) for group in range(layout.num_groups)]

    def encode(self, block: np.ndarray, out: np.ndarray, group: int = 0) -> None:
        shape = self._shapes[group]
        out[shape.rows_bytes : shape.scales_at] = 0
        out[shape.scales_at + shape.scales_bytes :] = 0
        kernels = native.module()
        if kernels is not None and shape.head_dim <= _MAX_NATIVE_DIM:
            _encode_native(kernels, shape, block, out)
        else:
            _encode_by_torch(shape, block, out)
        if not shape.is_finite(out):
            raise TierError(f"a page holds values that are not finite: not stored as {self.name}")

    def decode(self, page: np.ndarray, into_block: np.ndarray, group: int = 0) -> None:
        shape = self._shapes[group]
        if not shape.is_finite(page):
            raise WrongContent(f"a page of {self.name} holds values that are not finite, which is never stored")
        codes, scales, values = shape.codes(page), shape.scales(page)[:, None], shape.values(into_block)
        is_beyond = float(np.abs(scales).max()) * _LARGEST_CODE[self.name] > _LARGEST[shape.dtype]
        step = max(1, _AT_ONCE // codes.shape[1])
        for start in range(0, len(codes), step):
            piece = slice(start, start + step)
            numbers = _numbers(shape.code, codes[piece])
            with np.errstate(over="ignore"):
                numbers *= scales[piece]
            if is_beyond:
                np.clip(numbers, -_LARGEST[shape.dtype], _LARGEST[shape.dtype], out=numbers)
            values[piece] = _narrowed(numbers, shape.dtype)
        into_block[shape.block_bytes :] = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where everything lies in a block of one group, and in its encoded page. ``heads``: over all layers."""

    heads: int
    page_size: int
    head_dim: int
    dtype: str  # of blocks
    code: str  # of pages
    block_bytes: int
    rows_bytes: int
    scales_at: int

    @classmethod
    def of(cls, layout: KVLayout, encoded: KVLayout, group: int) -> "_Shape":
        layers = layout.groups[group]
        return cls(
            heads=len(layers.layers) * layers.kv_heads,
            page_size=layout.page_size,
            head_dim=layers.head_dim,
            dtype=layout.dtype,
            code=encoded.dtype,
            block_bytes=layers.bytes_per_token(layout.item_bytes) * layout.page_size,
            rows_bytes=layers.bytes_per_token(encoded.item_bytes) * layout.page_size,
            scales_at=encoded.scale_offset(group, 0, 0, 0),
        )

    @property
    def scales_bytes(self) -> int:
        return self.heads * 2 * 4

    def codes(self, page: np.ndarray) -> np.ndarray:
        """uint8 [heads * 2, page_size * head_dim]."""
        return page[: self.rows_bytes].reshape(self.heads * 2, -1)

    def scales(self, page: np.ndarray) -> np.ndarray:
        """float32 [heads * 2]."""
        return page[self.scales_at : self.scales_at + self.scales_bytes].view(np.float32)

    def values(self, block: np.ndarray) -> np.ndarray:
        """[heads * 2, page_size * head_dim] in a type of the values' size; bfloat16 as uint16."""
        stored = np.uint16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        return block[: self.block_bytes].view(stored).reshape(self.heads * 2, -1)

    def is_finite(self, page: np.ndarray) -> bool:
        scales = self.scales(page)
        has_nan = self.code == "float8_e4m3" and int((page[: self.rows_bytes] & _NAN_CODE).max()) == _NAN_CODE
        return not has_nan and bool(np.isfinite(scales).all())


def _encode_native(kernels: ModuleType, shape: _Shape, block: np.ndarray, out: np.ndarray) -> None:
    token_slots = _token_slots(kernels, shape.page_size)
    item = shape.block_bytes // shape.rows_bytes
    half = shape.page_size * shape.head_dim  # elements, and bytes of an encoded page
    step = max(1, _PIECE // (2 * half))
    for head in range(0, shape.heads, step):
        layer = kernels.CacheLayer(
            address=out.ctypes.data + head * 2 * half,
            num_blocks=1,
            block_stride=out.nbytes,
            head_stride=2 * half,
            half_stride=half,
            slot_stride=shape.head_dim,
            kv_heads=min(step, shape.heads - head),
            head_dim=shape.head_dim,
            page_size=shape.page_size,
            dtype=shape.code,
            scales=out.ctypes.data + shape.scales_at + head * 8,
        )
        k = block.ctypes.data + head * 2 * half * item
        v = k + half * item
        strides = shape.head_dim, 2 * half  # of a token, and of a head
        kernels.kv_write(layer, token_slots, k, *strides, v, *strides, shape.dtype)


@cache
def _token_slots(kernels: ModuleType, page_size: int) -> object:
    """All tokens of the one page of an encoded block."""
    return kernels.TokenSlots(np.zeros(page_size, np.int64), np.arange(page_size), 1, page_size)


def _encode_by_torch(shape: _Shape, block: np.ndarray, out: np.ndarray) -> None:
    import torch

    from kvpager.tiers.quantized import CODES, TokenPlaces, write
    from kvpager.tiers.rows import FLOAT_DTYPE

    code, whole = CODES[shape.code], (shape.heads, 2, shape.page_size, shape.head_dim)
    values = torch.from_numpy(block[: shape.block_bytes]).view(FLOAT_DTYPE[shape.dtype]).view(whole)
    rows = torch.from_numpy(out[: shape.rows_bytes]).view(code.dtype).view(1, *whole)
    scales = torch.from_numpy(shape.scales(out)).view(1, shape.heads, 2)
    places = TokenPlaces.of(np.zeros(shape.page_size, np.int64), np.arange(shape.page_size), "cpu")
    step = max(1, _TORCH_PIECE // (shape.page_size * shape.head_dim))
    for head in range(0, shape.heads, step):
        piece = values[head : head + step].transpose(0, 2)  # [page_size, 2, heads, head_dim]
        write(code, rows[:, head : head + step], scales[:, head : head + step], places, piece[:, 0], piece[:, 1])


@cache
def _code_numbers(code: str) -> np.ndarray:
    """The numbers of the 256 codes of e4m3 (OCP 8-bit floating point specification): 1 sign, 4 exponent, 3 fraction."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    sizes = np.where(exponents == 0, fractions * 2.0**-9, (8 + fractions) * 2.0 ** (exponents - 10.0))
    return np.where(codes & 0x80, -sizes, sizes).astype(np.float32)


def _numbers(code: str, codes: np.ndarray) -> np.ndarray:
    """What the codes stand for, as float32, before the scale. REQUIRES: no NaN."""
    if code == "int8":
        return codes.view(np.int8).astype(np.float32)
    return np.take(_code_numbers(code), codes, mode="clip")


def _narrowed(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in the cache's own type. bfloat16 is the upper half of float32, and has all of these numbers exactly."""
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(dtype, copy=False)
