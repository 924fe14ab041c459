"""int8 and fp8 (e4m3) rows in plain torch: how values become stored bytes and scales. The truth for the native writer.

    value = stored * scale        one scale per page, layer, KV head and half (K or V), a power of two

A scale is the smallest power of two with which the largest magnitude of its page fits: 127 steps of int8, or 448, the
largest number of e4m3; at least 2**-64. Tokens that come later may need a larger one. The slots written before are
scaled down with it, and since both scales are powers of two,

    int8   a value is off by half a unit of the final scale where it was written with it, by less than one unit in all
           where the scale grew in between (1/2 + 1/4 + 1/8 + ...)
    e4m3   scaling down is exact, apart from what falls below 2**-6 of the final scale: off by less than 2**-9 of it

Scales therefore depend on the tokens of a page alone, stored bytes also on how they were cut into calls, by at most one
unit. The token in slot 0 begins a page, so it forgets the scale that was there; until the next one a scale never
shrinks, even where tokens were taken back.

What is not finite stays visible. e4m3 stores NaN for NaN and for infinity, which it has not; they don't count for the
scale. int8 has neither: the scale becomes NaN, and so the whole page of that head and half reads as NaN until slot 0 is
written again.

Scales are compared as the integers that their bits are: positive floats and these integers have the same order, and NaN
is above all.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_NAN = 0x7FC00000
_INFINITY = 0x7F800000
_LEAST_EXPONENT = 127 - 64  # biased: values this small are no longer told from zero


@dataclass(frozen=True, slots=True)
class Code:
    """A stored type. Its largest magnitude is (1 + fraction / 2**23) * 2**exponent."""

    dtype: torch.dtype
    exponent: int
    fraction: int
    has_nan: bool


CODES = {
    "int8": Code(torch.int8, 6, 0x7E0000, has_nan=False),  # 127
    "float8_e4m3": Code(torch.float8_e4m3fn, 8, 0x600000, has_nan=True),  # 448
}


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Where T tokens go: slot ``slots[t]`` of ``blocks[t]``, tokens of one page side by side in order.

    ``pages`` [R]: the block of each run of tokens in one page; ``page_of`` [T]: the run of each token; ``first_slots``
    [R]: where it begins; ``begun`` [B]: the runs that don't begin at slot 0, whose page holds tokens already.
    """

    blocks: Tensor
    slots: Tensor
    pages: Tensor
    page_of: Tensor
    first_slots: Tensor
    begun: Tensor

    @classmethod
    def of(cls, blocks: np.ndarray, slots: np.ndarray, device: str) -> "TokenPlaces":
        begins = np.flatnonzero(np.diff(blocks, prepend=-1))
        counts = np.diff(begins, append=len(blocks))
        columns = (
            blocks,
            slots,
            blocks[begins],
            np.repeat(np.arange(len(begins)), counts),
            slots[begins],
            np.flatnonzero(slots[begins]),
        )
        return cls(*(torch.as_tensor(np.ascontiguousarray(each, np.int64), device=device) for each in columns))


def write(code: Code, rows: Tensor, scales: Tensor, places: TokenPlaces, k: Tensor, v: Tensor) -> None:
    """``rows`` [blocks, kv_heads, 2, page_size, head_dim] and ``scales`` [blocks, kv_heads, 2] are written; ``k`` and
    ``v`` [tokens, kv_heads, head_dim] in any float type."""
    new = torch.stack([k, v], dim=2).float()  # [tokens, kv_heads, 2, head_dim]
    needed = _needed_scales(code, new, places)
    is_begun = places.first_slots[:, None, None] > 0
    before = scales[places.pages].view(torch.int32) * is_begun
    bits = torch.maximum(before, needed)  # [pages, kv_heads, 2]
    scales[places.pages] = bits.view(torch.float32)
    if len(places.begun):
        _scale_down(code, rows, places, before, bits)
    inverse = torch.where(bits < _INFINITY, 1 / bits.view(torch.float32), 0.0)
    stored = _encode(code, new * inverse[places.page_of][..., None])
    raw = rows.view(torch.uint8)
    raw[places.blocks, :, 0, places.slots] = stored[:, :, 0]
    raw[places.blocks, :, 1, places.slots] = stored[:, :, 1]


def values(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """What the rows ``stored`` [..., head_dim] mean with ``scales`` [...]; exact in float32 and bfloat16."""
    return stored.to(dtype) * scales.to(dtype)[..., None]


def _needed_scales(code: Code, new: Tensor, places: TokenPlaces) -> Tensor:
    """Bits of the scales [pages, kv_heads, 2] that the new tokens alone need."""
    magnitudes = new.view(torch.int32) & 0x7FFFFFFF
    if code.has_nan:
        magnitudes = magnitudes * (magnitudes < _INFINITY)
    largest = magnitudes.amax(dim=3)
    of_page = largest.new_zeros(len(places.pages), *largest.shape[1:])
    of_page.scatter_reduce_(0, places.page_of[:, None, None].expand_as(largest), largest, "amax")
    exponents = (of_page >> 23) - code.exponent + ((of_page & 0x7FFFFF) > code.fraction).int()
    return torch.where(of_page < _INFINITY, exponents.clamp(min=_LEAST_EXPONENT) << 23, _NAN)


def _scale_down(code: Code, rows: Tensor, places: TokenPlaces, before: Tensor, bits: Tensor) -> None:
    """Brings the slots that were written earlier to the scales that grew."""
    before, bits = before[places.begun], bits[places.begun]
    pages = rows.view(torch.uint8)[places.pages[places.begun]]  # [begun, kv_heads, 2, page_size, head_dim]
    has_grown = (bits > before) & (bits < _INFINITY)
    ratio = torch.where(has_grown, before.view(torch.float32) / bits.view(torch.float32), 0.0)
    scaled = _encode(code, pages.view(code.dtype).float() * ratio[..., None, None])
    slots = torch.arange(rows.shape[3], device=rows.device)
    is_earlier = slots < places.first_slots[places.begun][:, None]  # [begun, page_size]
    change = has_grown[..., None, None] & is_earlier[:, None, None, :, None]
    if code.has_nan:
        change = change & ((pages & 0x7F) != 0x7F)
    rows.view(torch.uint8)[places.pages[places.begun]] = torch.where(change, scaled, pages)


def _encode(code: Code, scaled: Tensor) -> Tensor:
    """Rounds to nearest even; the bytes. In int8, NaN becomes 0: its scale says what it is."""
    if code.has_nan:
        nan = torch.full_like(scaled, math.nan).copysign(scaled)  # of infinity: torch's versions differ about it
        return scaled.where(scaled.isfinite(), nan).to(code.dtype).view(torch.uint8)
    return scaled.nan_to_num(0.0, 0.0, 0.0).round().to(code.dtype).view(torch.uint8)
