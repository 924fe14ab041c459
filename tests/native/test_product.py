"""Products of rows with weights, against float64; and a row's bits, whatever is computed with it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import ceil, log2
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import kvpager.native
from kvpager.integrations.native_matrix import native_matrix

Threads = Callable[[int], AbstractContextManager[None]]
DTYPES = [torch.float32, torch.bfloat16]
LANES = {"portable": 4, "avx2": 8}  # 16 elsewhere
MANY = 100  # rows for which weights are packed

pytestmark = pytest.mark.usefixtures("isa")


def matrix(rows: Tensor) -> Any:
    """Borrows the memory: ``rows`` has to have a name of its own."""
    return native_matrix(kvpager.native.module(), rows)


def draw(rows: int, columns: int, dtype: torch.dtype, seed: int = 0, spare: int = 3) -> Tensor:
    """Random rows that lie ``spare`` items apart, so that most are unaligned; NaN before, between and behind them."""
    generator = torch.Generator().manual_seed(seed)
    around = torch.full((rows + 2, columns + spare), torch.nan, dtype=dtype)
    inside = around[1:-1, :columns]
    inside.copy_(torch.randn(rows, columns, generator=generator))
    return inside


def product(native: ModuleType, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """In strided rows; what lies between them is checked to stay as it was."""
    around = torch.full((len(x), len(w) + 5), 7.0, dtype=w.dtype)
    out = around[:, : len(w)]
    native.product(matrix(x), matrix(w), None if bias is None else matrix(bias), matrix(out))
    assert (around[:, len(w) :] == 7).all()
    return out


def assert_close(found: Tensor, x: Tensor, w: Tensor, bias: Tensor | None, isa: str) -> None:
    """Within the bound of a sum that is formed in fp32 and rounded once (Higham, chapter 3): one chain a lane, or with
    matrix tiles 16 products and then a chain over the tiles.
    """
    lanes = 32 if isa == "amx" and x.dtype == torch.bfloat16 else LANES.get(isa, 16)
    added = torch.zeros(1, 1, dtype=torch.double) if bias is None else bias.double()
    exact = x.double() @ w.double().t() + added
    size = x.double().abs() @ w.double().abs().t() + added.abs()
    within = 16 if lanes == 32 else log2(lanes)
    operations = 2 + ceil(x.shape[1] / lanes) + within  # a product is rounded, where it is not fused; the bias
    bound = operations * 2.0**-24 / (1 - operations * 2.0**-24) * size
    if found.dtype == torch.bfloat16:
        bound = bound + (exact.abs() + bound) * 2.0**-8
    error = (found.double() - exact).abs()
    assert (error <= bound).all(), float((error / bound).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [1, 7, 15, 33, 576, 1537])
def test_product_is_within_the_bound_of_its_rounding(
    native: ModuleType, isa: str, inputs: int, dtype: torch.dtype
) -> None:
    for outputs in (1, 2, 3, 17, 101):
        w, bias = draw(outputs, inputs, dtype, seed=1), draw(1, outputs, dtype, seed=2)
        for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 33, MANY):
            x = draw(rows, inputs, dtype)
            for added in (None, bias):
                assert_close(product(native, x, w, added), x, w, added, isa)


def test_the_bound_is_tight_enough_to_see_a_missing_product(native: ModuleType, isa: str) -> None:
    x, w = draw(3, 576, torch.bfloat16), draw(40, 576, torch.bfloat16, seed=1)
    found = product(native, x, w)
    x[:, 573] = 0
    with pytest.raises(AssertionError):
        assert_close(found, x, w, None, isa)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch(native: ModuleType, threads: Threads, dtype: torch.dtype) -> None:
    x, w, bias = draw(MANY, 1100, dtype), draw(211, 1100, dtype, seed=1), draw(1, 211, dtype, seed=2)
    several = ((0, 2), (1, 4), (2, 6), (3, 8), (4, 10), (5, 12), (6, 14), (7, 40), (0, 40))
    with threads(1):
        alone = torch.cat([product(native, x[r : r + 1], w, bias) for r in range(len(x))])
        for first, last in (*several, *((MANY - many, MANY) for many in range(90, MANY + 1))):
            assert torch.equal(product(native, x[first:last], w, bias), alone[first:last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs", [1, 15, 16, 47, 2048, 12_400])
def test_the_same_bits_with_any_number_of_inputs(native: ModuleType, inputs: int, dtype: torch.dtype) -> None:
    x, w = draw(MANY, inputs, dtype), draw(35, inputs, dtype, seed=1)
    few = torch.cat([product(native, x[r : r + 5], w) for r in range(0, MANY, 5)])
    assert torch.equal(product(native, x, w), few)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [10, MANY])
def test_threads_and_cuts_change_no_bit(native: ModuleType, threads: Threads, rows: int, dtype: torch.dtype) -> None:
    x, w = draw(rows, 1000, dtype), draw(211, 1000, dtype, seed=1)
    with threads(1):
        whole = product(native, x, w)
    for count in (2, 3):
        with threads(count):
            assert torch.equal(product(native, x, w), whole)
    for first, last in ((0, 1), (1, 2), (5, 60), (60, 211)):
        assert torch.equal(product(native, x, w[first:last]), whole[:, first:last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 20, MANY])
def test_nan_and_infinity_stay_where_they_belong(native: ModuleType, rows: int, dtype: torch.dtype) -> None:
    x, w = draw(rows, 45, dtype).abs(), draw(30, 45, dtype, seed=1).abs()
    x[0, 44], w[7, 3], w[8, 44], w[9, 0] = torch.inf, torch.nan, torch.inf, -torch.inf
    found = product(native, x, w)
    expected = (x.float() @ w.float().t()).to(dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    assert found[:, 7].isnan().all()  # the control: it is not lost
    assert found[0, 9].isnan()
    assert found.isnan().sum() == rows + 1
    assert torch.equal(found[1:, 8:10], expected[1:, 8:10])


def test_the_bias_is_added_before_the_sum_is_rounded(native: ModuleType) -> None:
    x, w = torch.tensor([[1.0, 2.0**-9]]).bfloat16(), torch.ones(1, 2).bfloat16()
    assert product(native, x, w).item() == 1.0
    assert product(native, x, w, torch.tensor([[-1.0]]).bfloat16()).item() == 2.0**-9
    assert torch.addmm(torch.tensor([-1.0]).bfloat16(), x, w.t()).item() == 2.0**-9  # and so does torch


X, W, OUT, BIAS = torch.ones(2, 8), torch.ones(3, 8), torch.zeros(2, 3), torch.zeros(1, 3)
HALVES = {name: rows.bfloat16() for name, rows in (("X", X), ("W", W), ("OUT", OUT), ("BIAS", BIAS))}
ODD = {
    "W": W.half(),
    "X": torch.ones(2, 7),
    "OUT": torch.zeros(3, 3),
    "WIDE": torch.zeros(2, 4),
    "TWO": torch.zeros(2, 3),
}


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("w", lambda m: m.product(matrix(X), matrix(ODD["W"]), None, matrix(OUT))),
        ("x", lambda m: m.product(matrix(HALVES["X"]), matrix(W), None, matrix(OUT))),
        ("x", lambda m: m.product(matrix(ODD["X"]), matrix(W), None, matrix(OUT))),
        ("out", lambda m: m.product(matrix(X), matrix(W), None, matrix(HALVES["OUT"]))),
        ("out", lambda m: m.product(matrix(X), matrix(W), None, matrix(ODD["OUT"]))),
        ("out", lambda m: m.product(matrix(X), matrix(W), None, matrix(ODD["WIDE"]))),
        ("bias", lambda m: m.product(matrix(X), matrix(W), matrix(HALVES["BIAS"]), matrix(OUT))),
        ("bias", lambda m: m.product(matrix(X), matrix(W), matrix(ODD["TWO"]), matrix(OUT))),
        ("bias", lambda m: m.product(matrix(X), matrix(W), matrix(ODD["WIDE"][:1]), matrix(OUT))),
    ],
)
def test_a_wrong_argument_is_named(native: ModuleType, argument: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}\b"):
        call(native)
    native.product(matrix(X), matrix(W), matrix(BIAS), matrix(OUT))  # the control: right ones pass
    assert (OUT == 8).all()
