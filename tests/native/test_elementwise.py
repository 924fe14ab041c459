"""What lies between matrix products, against Hugging Face's own modules."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import kvpager.native
from kvpager.integrations.native_matrix import native_matrix

Threads = Callable[[int], AbstractContextManager[None]]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [8, 13, 31, 32, 100, 576, 1000, 2048, 9000, 70_003]


pytestmark = pytest.mark.usefixtures("isa")


def matrix(rows: Tensor) -> Any:
    """Borrows the memory: ``rows`` has to have a name of its own."""
    return native_matrix(kvpager.native.module(), rows)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0, spare: int = 3) -> Tensor:
    """Random rows that lie ``spare`` items apart; NaN between them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((*shape[:-1], shape[-1] + spare), torch.nan, dtype=dtype)
    rows = rows[..., : shape[-1]]
    rows.copy_(torch.randn(shape, generator=generator) * 3)
    return rows


def assert_same(found: Tensor, expected: Tensor, *, share: float = 1.0) -> None:
    """Equal bits; where the order of a sum or the last bit of exp may differ, in nearly all places, by one rounding."""
    assert found.dtype == expected.dtype
    if share < 1.0:
        torch.testing.assert_close(found, expected, rtol={2: 2**-7, 4: 2e-6}[found.element_size()], atol=1e-7)
    assert (found == expected).float().mean() >= share, (found != expected).nonzero()[:5]


def exact_share(isa: str, dtype: torch.dtype) -> float:
    """How many results must have equal bits: all with the instructions that torch uses on this processor."""
    if isa != "portable" and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        return 1.0
    return 0.0 if dtype == torch.float32 else 0.99


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norm_is_that_of_the_module(native: ModuleType, width: int, dtype: torch.dtype, isa: str) -> None:
    norm = LlamaRMSNorm(width, eps=1e-5).to(dtype)
    nn.init.normal_(norm.weight)
    x = draw(3, width, dtype=dtype)
    out = draw(3, width, dtype=dtype, seed=1)
    native.rms_norm(matrix(x), None, matrix(norm.weight[None]), matrix(out), 1e-5)
    with torch.no_grad():
        assert_same(out, norm(x), share=exact_share(isa, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm_after_a_sum(native: ModuleType, dtype: torch.dtype, isa: str) -> None:
    norm = LlamaRMSNorm(576, eps=1e-6).to(dtype)
    x, added, out = (draw(32, 576, dtype=dtype, seed=seed) for seed in range(3))
    total = x + added
    native.rms_norm(matrix(x), matrix(added), matrix(norm.weight[None]), matrix(out), 1e-6)
    assert torch.equal(x, total)
    with torch.no_grad():
        assert_same(out, norm(total), share=exact_share(isa, dtype))


def test_norm_of_heads_in_place(native: ModuleType, isa: str) -> None:
    norm = Qwen3RMSNorm(48).bfloat16()
    nn.init.normal_(norm.weight)
    x = draw(5, 4 * 48, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = norm(x.unflatten(1, (4, 48))).flatten(1)
    native.rms_norm(matrix(x), None, matrix(norm.weight[None]), matrix(x), norm.variance_epsilon)
    assert_same(x, expected, share=exact_share(isa, torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 15, 16, 96, 1536])
def test_gated_silu_is_that_of_the_module(native: ModuleType, width: int, dtype: torch.dtype, isa: str) -> None:
    gate_up = draw(11, 2 * width, dtype=dtype) * 10
    gate_up[0, :width].fill_(-300.0)
    gate_up[1, :width].fill_(300.0)
    gate_up[2, 0] = torch.inf
    out = draw(11, width, dtype=dtype, seed=1)
    native.silu_mul(matrix(gate_up), matrix(out))
    expected = ACT2FN["silu"](gate_up[:, :width].contiguous()) * gate_up[:, width:]
    # torch computes what is left over after whole vectors with another exp.
    assert_same(out, expected, share=0.98 if dtype == torch.float32 else exact_share(isa, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_and_threads_change_no_bit(native: ModuleType, threads: Threads, dtype: torch.dtype) -> None:
    tokens, width = 257, 1024
    weight = draw(1, width, dtype=dtype, seed=4)

    def run(rows: slice, count: int) -> list[Tensor]:
        x, added = draw(tokens, width, dtype=dtype)[rows], draw(tokens, width, dtype=dtype, seed=1)[rows]
        out, gated = torch.empty_like(x), torch.empty_like(x[:, : width // 2])
        with threads(count):
            native.rms_norm(matrix(x), matrix(added), matrix(weight), matrix(out), 1e-5)
            native.silu_mul(matrix(out), matrix(gated))
        return [x, out, gated]

    whole = run(slice(None), 1)
    for rows, count in ((slice(None), 2), (slice(100, 101), 1), (slice(3, 250), 2)):
        for found, expected in zip(run(rows, count), whole, strict=True):
            assert torch.equal(found, expected[rows])


def test_nan_stays_in_its_row(native: ModuleType) -> None:
    x = draw(3, 40, dtype=torch.float32)
    x[1, 7] = torch.nan
    weight, out, gated = torch.ones(1, 40), torch.empty(3, 40), torch.empty(3, 20)
    native.rms_norm(matrix(x), None, matrix(weight), matrix(out), 1e-5)
    native.silu_mul(matrix(x), matrix(gated))
    assert out.isnan().any(dim=1).tolist() == [False, True, False]
    assert gated.isnan().any(dim=1).tolist() == [False, True, False]


def test_no_rows_is_no_work(native: ModuleType) -> None:
    nothing, weight, twice = torch.empty(0, 8), torch.ones(1, 8), torch.empty(0, 16)
    native.rms_norm(matrix(nothing), None, matrix(weight), matrix(nothing), 1e-5)
    native.silu_mul(matrix(twice), matrix(nothing))


ROWS = {name: torch.zeros(2, columns) for name, columns in (("x", 8), ("wide", 16), ("odd", 3), ("half", 4))}


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("out", lambda m: m.rms_norm(matrix(ROWS["x"]), None, matrix(ROWS["x"][:1]), matrix(ROWS["wide"]), 1e-5)),
        (
            "added",
            lambda m: m.rms_norm(matrix(ROWS["x"]), matrix(ROWS["half"]), matrix(ROWS["x"][:1]), matrix(ROWS["x"]), 0),
        ),
        ("weight", lambda m: m.rms_norm(matrix(ROWS["x"]), None, matrix(ROWS["x"]), matrix(ROWS["x"]), 1e-5)),
        ("weight", lambda m: m.rms_norm(matrix(ROWS["x"]), None, matrix(ROWS["odd"][:1]), matrix(ROWS["x"]), 1e-5)),
        (
            "weight",
            lambda m: m.rms_norm(matrix(ROWS["x"]), None, matrix(ROWS["x"][:1].half()), matrix(ROWS["x"]), 1e-5),
        ),
        ("out", lambda m: m.silu_mul(matrix(ROWS["x"]), matrix(ROWS["x"]))),
        ("out", lambda m: m.silu_mul(matrix(ROWS["x"]), matrix(ROWS["half"][:1]))),
        ("row_stride", lambda m: m.Matrix(address=64, rows=2, columns=8, row_stride=7, dtype="float32")),
        ("rows", lambda m: m.Matrix(address=64, rows=-1, columns=8, row_stride=8, dtype="float32")),
        ("columns", lambda m: m.Matrix(address=64, rows=1, columns=0, row_stride=8, dtype="float32")),
        ("address", lambda m: m.Matrix(address=0, rows=1, columns=8, row_stride=8, dtype="float32")),
        ("dtype", lambda m: m.Matrix(address=64, rows=1, columns=8, row_stride=8, dtype="int8")),
    ],
)
def test_a_wrong_argument_is_named(native: ModuleType, argument: str, call: Callable[[Any], object]) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^{argument}\b"):
        call(native)
    native.silu_mul(matrix(ROWS["x"]), matrix(ROWS["half"]))  # the control: right ones pass
