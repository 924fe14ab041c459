"""Which products are native, and that a row does not notice its batch."""

import pytest
import torch
from torch import Tensor, nn

from kvpager import native
from kvpager.integrations.decoder_layers import Projection
from kvpager.integrations.products import few_rows, is_native, matrix_product

pytestmark = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Kernels:
    """Stands for the module on another processor."""

    def __init__(self, isa: str) -> None:
        self._isa = isa

    def isa(self) -> str:
        return self._isa


def product(rows: Tensor, module: nn.Linear) -> Tensor:
    out = rows.new_empty(len(rows), module.out_features)
    bias = None if module.bias is None else module.bias.data
    matrix_product(rows, Projection(module.weight.data, bias, (module,)), out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 64, 65])
def test_it_is_that_of_the_module(rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    module = nn.Linear(96, 50, bias=has_bias).to(dtype)
    x = torch.randn(rows, 96).to(dtype)
    rtol = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}[dtype]
    with torch.no_grad():
        torch.testing.assert_close(product(x, module), module(x), rtol=rtol, atol=rtol / 10)


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512", "avx512_bf16", "amx"])
def test_the_rule(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setattr(native, "module", lambda: Kernels(isa))
    assert few_rows() == (8 if isa in ("avx512_bf16", "amx") else 64)
    for dtype in DTYPES:
        assert is_native(few_rows(), dtype) == (dtype != torch.float16)
    assert is_native(few_rows() + 1, torch.bfloat16) == (isa != "avx512_bf16")
    assert is_native(few_rows() + 1, torch.float32) == (isa == "avx2")
    assert not is_native(few_rows() + 1, torch.float16)


def test_nothing_is_native_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Linear(8, 8), torch.randn(2, 8)
    assert is_native(2, torch.float32)
    monkeypatch.setattr(native, "module", lambda: None)
    assert not is_native(2, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(product(x, module), module(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    module = nn.Linear(576, 100).to(dtype)
    x = torch.randn(few_rows(), 576).to(dtype)
    whole = product(x, module)
    for first, last in ((0, 1), (1, 6), (3, few_rows())):
        assert torch.equal(product(x[first:last], module), whole[first:last])
