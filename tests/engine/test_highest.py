"""The highest logit of each row: what torch chooses, on every dtype, with ties, zeros of both signs and damage."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvpager.engine.highest import highest

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
VALUES = [0.0, -0.0, 1.0, 1.5, -1.0, -2.5, 300.0, -300.0, 1e-8, -1e-8, math.inf, -math.inf, math.nan]


def by_torch(logits: torch.Tensor) -> list[int | None]:
    best = logits.max(dim=-1)
    return [int(i) if math.isfinite(v) else None for v, i in zip(best.values.tolist(), best.indices, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(
    rows=st.integers(1, 6).flatmap(
        lambda width: st.lists(st.lists(st.sampled_from(VALUES), min_size=width, max_size=width), min_size=1)
    )
)
def test_it_chooses_what_torch_chooses(rows: list[list[float]], dtype: torch.dtype) -> None:
    logits = torch.tensor(rows, dtype=dtype)
    assert highest(logits) == by_torch(logits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [0.0, -50.0], ids=["both signs", "all negative"])
def test_rows_as_wide_as_a_vocabulary(dtype: torch.dtype, shift: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(9, 49_157, generator=generator) * 4 + shift).to(dtype)  # 16-bit ones tie
    assert highest(logits) == by_torch(logits)
    assert highest(logits[::2, 5:4000]) == by_torch(logits[::2, 5:4000])  # neither rows nor columns side by side


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [0x7FC0, 0x7FFF, 0xFFC0 - 0x10000, -1], ids=["nan", "max", "signed", "ones"])
def test_a_nan_of_either_sign_is_damage_wherever_it_is(dtype: torch.dtype, bits: int) -> None:
    if dtype is torch.float16 and bits == 0x7FC0:
        bits = 0x7E00
    for place in (0, 77, 99):
        logits = torch.linspace(-1, 3, 300).reshape(3, 100).to(dtype)
        logits[1].view(torch.int16)[place] = bits
        assert logits[1, place].isnan()
        assert highest(logits) == [99, None, 99]
