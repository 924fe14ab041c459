"""What quantized bytes mean, read from a pool in numpy: shares no line with the code that writes and reads them."""

from collections.abc import Iterable

import numpy as np

from kvpager import PagedCache
from kvpager.memory.layout import KVLayout


def e4m3_numbers() -> np.ndarray:
    """The 256 numbers of OCP FP8 E4M3: sign, 4 bits of exponent with bias 7, 3 bits of fraction; all ones is NaN."""
    numbers = np.empty(256)
    for byte in range(256):
        exponent, fraction = byte >> 3 & 15, byte & 7
        size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
        numbers[byte] = (-size if byte & 0x80 else size) if byte & 0x7F != 0x7F else np.nan
    return numbers


NUMBERS = {"int8": np.arange(256).astype(np.uint8).view(np.int8).astype(float), "float8_e4m3": e4m3_numbers()}


def scale_of(blocks: np.ndarray, layout: KVLayout, layer: int, block: int, head: int, half: int) -> float:
    """``blocks``: uint8 [num_blocks, block_stride]."""
    place = layout.places[layer]
    at = layout.scale_offset(place.group, place.index, head, half)
    return float(blocks[block, at : at + 4].copy().view(np.float32)[0])


def stored_values(
    blocks: np.ndarray, layout: KVLayout, layer: int, where: Iterable[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """K and V, float64 [tokens, kv_heads, head_dim], of the given (block, slot) pairs; a block below 0 is all zeros."""
    place = layout.places[layer]
    group = layout.groups[place.group]
    where = list(where)
    found = np.zeros((2, len(where), group.kv_heads, group.head_dim))
    held = [(token, block, slot) for token, (block, slot) in enumerate(where) if block >= 0]
    if not held:
        return found[0], found[1]
    tokens, ids, slots = (list(column) for column in zip(*held, strict=True))
    for head in range(group.kv_heads):
        for half in range(2):
            starts = [layout.slot_offset(place.group, place.index, head, half, slot) for slot in slots]
            numbers = blocks[np.array(ids)[:, None], np.array(starts)[:, None] + np.arange(group.head_dim)]
            scales = {block: scale_of(blocks, layout, layer, block, head, half) for block in set(ids)}
            found[half, tokens, head] = (
                NUMBERS[layout.dtype][numbers] * np.array([scales[block] for block in ids])[:, None]
            )
    return found[0], found[1]


def unit(layout: KVLayout, scale: float, value: np.ndarray) -> np.ndarray:
    """The distance of stored numbers around ``value``; what lies below 2**-6 of an e4m3 scale is spaced evenly."""
    if layout.dtype == "int8":
        return np.full(value.shape, scale)
    exponents = np.floor(np.log2(np.maximum(np.abs(value) / scale, 2.0**-6)))
    return scale * 2.0 ** (exponents - 3)


def pool_bytes(cache: PagedCache) -> np.ndarray:
    """uint8 [num_blocks, block_stride] of a CPU pool."""
    blocks: np.ndarray = cache.arena.blocks  # type: ignore[attr-defined]
    return blocks
