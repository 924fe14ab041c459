"""``kvpager bench kernels`` at a tiny size: all figures are there, and nothing is timed that is wrong."""

import json
import math
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.cpu import CpuPlan
from kvpager.bench import kernels, kernels_moving, kernels_paging, limits, paged_case
from kvpager.bench.paged_case import LLAMA, SMOL, PagedCase
from kvpager.bench.scale import Load, Scale
from kvpager.bench.torch_attention import (
    TorchAttention,
    bmm_folded,
    causal_bias,
    sdpa_expanded,
    sdpa_folded,
    sdpa_gqa,
    sdpa_grouped,
)
from kvpager.cli import bench
from kvpager.config import DEFAULT_PAGE_SIZE
from kvpager.errors import ConfigError, InvariantError
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout

TINY = Scale(
    seconds=0.0,
    cold_bytes=8 << 20,
    long=Load(sequences=1, context=2048),
    batch=Load(sequences=8, context=256),
    paging=Load(sequences=8, context=256),
    prefill=Load(sequences=1, context=96, new_tokens=32),
    gemm_size=32,
    prefill_rows=64,
    decode_rows=16,
)
TARGETS = {
    "decode_llama_1x128k_read_share": 0.55,
    "decode_llama_64x2k_read_share": 0.55,
    "decode_smol_1x128k_read_share": 0.6,
    "decode_smol_64x2k_read_share": 0.6,
    "decode_llama_64x2k_vs_folded": 3.0,
    "decode_smol_64x2k_vs_folded": 2.0,
    "decode_llama_64x2k_vs_sdpa_gqa": 20.0,
    "decode_smol_64x2k_vs_sdpa_gqa": 20.0,
    "paging_overhead_default": 1.08,
    "prefill_512_on_8k_vs_sdpa": 2.0,
    "prefill_512_on_8k_gemm_share": 0.65,
    "kv_write_prefill_memcpy_share": 0.75,
    "block_copy_memcpy_share": 0.9,
    "gather_memcpy_share": 0.9,
    "kv_write_decode_vs_index_put": 3.0,
    "checksum_copy_memcpy_share": 0.8,
    "int8_decode_vs_bf16_decode": 0.8,
}
AT_MOST = {"paging_overhead_default", "int8_decode_vs_bf16_decode"}

needs_native = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "FULL", TINY)
    monkeypatch.setattr(kernels, "QUICK", TINY)
    threads = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == threads


@needs_native
@pytest.mark.slow
def test_every_figure_of_the_table_is_there(tiny: None) -> None:
    module = native.module()
    assert module is not None
    isa = module.isa()
    shown = json.loads(json.dumps(kernels.run_parts([name for name in kernels.PARTS if name != "step"])))
    found = {result["name"]: result for result in shown["results"]}
    assert len(found) == len(shown["results"])
    assert {name: result["target"] for name, result in found.items() if result["target"] is not None} == TARGETS
    for name, result in found.items():
        assert result["value"] > 0, name
        assert math.isfinite(result["value"]), name
        if name in TARGETS:
            is_met = result["value"] <= TARGETS[name] if name in AT_MOST else result["value"] >= TARGETS[name]
            assert result["met"] is is_met, name
    assert f"{isa} kernels" in shown["hardware"]
    assert module.isa() == isa  # though all were measured


def test_it_is_listed_and_its_parts_are_not() -> None:
    names = {module.__name__.rpartition(".")[2] for module in bench._benchmarks()}
    assert "kernels" in names
    assert not {name for name in names if name.startswith("kernels_")}


@pytest.mark.parametrize("package", ["transformers", "safetensors"])
def test_without_an_extra_it_is_listed_and_leaves_the_model_out(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def refuse(name: str) -> ModuleType:
        if name == "kvpager.bench.step_overhead":
            raise ModuleNotFoundError(name=package)
        return import_module(name)

    monkeypatch.setattr(bench, "import_module", refuse)
    assert "kvpager.bench.kernels" in [module.__name__ for module in bench._benchmarks()]
    monkeypatch.setitem(sys.modules, "kvpager.bench.step_overhead", _Missing(package))
    assert kernels.PARTS["step"](TINY) == []
    monkeypatch.setitem(sys.modules, "kvpager.bench.step_overhead", _Missing("kvpager.elsewhere"))
    with pytest.raises(ModuleNotFoundError):
        kernels.PARTS["step"](TINY)


class _Missing(ModuleType):
    """A module that can't be imported from, for want of another."""

    def __init__(self, missing: str) -> None:
        super().__init__("missing")
        self._missing = missing

    def __getattr__(self, name: str) -> object:
        raise ModuleNotFoundError(name=self._missing)


def test_without_native_kernels_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda: None)
    monkeypatch.setattr(native, "why_not", lambda: "not built: no compiler")
    with pytest.raises(ConfigError, match="no native kernels to measure: not built"):
        kernels.run(quick=True)


@needs_native
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3"])
def test_a_case_is_what_the_reference_computes(dtype: str) -> None:
    with PagedCase(SMOL, TINY.batch, cold_bytes=4 << 20, dtype=dtype) as case:
        assert case.num_batches > 1
        case.check()


@needs_native
def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CpuPlan.run

    def forgets_a_head(plan: CpuPlan, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = run(plan, layer, q, k, v)
        out[-1, 3] = 0.0
        return out

    with PagedCase(LLAMA, TINY.batch) as case:
        case.check()
        monkeypatch.setattr(CpuPlan, "run", forgets_a_head)
        with pytest.raises(InvariantError, match="it was not timed"):
            case.check()


@needs_native
def test_results_that_depend_on_the_place_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_paging._overhead(SMOL, 16, TINY)
    monkeypatch.setattr(PagedCase, "take_content_of", lambda case, other: None)
    with pytest.raises(InvariantError, match="depends on where blocks lie"):
        kernels_paging._overhead(SMOL, 16, TINY)


@needs_native
def test_a_write_beside_its_slots_is_not_timed() -> None:
    writes = kernels_moving._Writes(SMOL, 16, 1 << 20, is_decode=True)
    write = writes.native()
    writes.check(write)

    def write_too_much() -> None:
        write()
        writes.cache.arena.blocks[0] = 1  # type: ignore[attr-defined]

    with pytest.raises(InvariantError, match="it was not timed"):
        writes.check(write_too_much)


@needs_native
def test_blocks_are_shuffled_unless_asked_otherwise() -> None:
    with PagedCase(SMOL, TINY.batch) as shuffled, PagedCase(SMOL, TINY.batch, is_shuffled=False) as consecutive:
        assert not (np.diff(shuffled.blocks(0)) == 1).all()
        # Each sequence has a last page of its own, given out by the second step.
        assert (np.diff(consecutive.blocks(0)) == 1).mean() > 0.8
        assert sorted(shuffled.blocks(0)) == sorted(consecutive.blocks(0))


def test_the_default_page_size_is_that_of_layouts() -> None:
    assert KVLayout(layers=2, kv_heads=2, head_dim=8).page_size == DEFAULT_PAGE_SIZE
    assert DEFAULT_PAGE_SIZE in kernels_paging.PAGE_SIZES


@needs_native
@pytest.mark.parametrize("which", [0, 1], ids=["memcpy", "stream"])
@pytest.mark.parametrize("num_bytes", [0, 1, 63, 64, 129, 4096, 100_001])
def test_copy_limits_copy_everything(which: int, num_bytes: int) -> None:
    source, target = HostArena(1, 1 << 18), HostArena(1, 1 << 18)
    source.blocks[0] = np.random.default_rng(0).integers(1, 256, 1 << 18, np.uint8)
    limits.copy_limits(target.address, source.address, num_bytes)[which]()
    assert np.array_equal(target.blocks[0, :num_bytes], source.blocks[0, :num_bytes])
    assert not target.blocks[0, num_bytes:].any()


@needs_native
def test_limits_refuse_what_they_can_not_do() -> None:
    module = native.module()
    assert module is not None
    for copy in (module.copy_bytes, module.stream_bytes):
        copy(64, 64, 0, 1)
        with pytest.raises(ValueError, match="bytes"):
            copy(64, 64, -1, 1)
        with pytest.raises(ValueError, match="threads"):
            copy(64, 64, 0, 0)
    with pytest.raises(ValueError, match="target is not aligned"):
        module.stream_bytes(65, 64, 0, 1)


@pytest.mark.parametrize("attend", [sdpa_gqa, sdpa_expanded, sdpa_grouped, sdpa_folded, bmm_folded])
@pytest.mark.parametrize("new", [1, 5])
def test_every_way_to_write_it_in_torch_is_the_same(attend: TorchAttention, new: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 6, new, 16, generator=generator)
    k, v = torch.randn(2, 3, 2, 9, 16, generator=generator)
    scores = torch.einsum("shqd,shkd->shqk", q, k.repeat_interleave(3, 1)) / 4
    bias = causal_bias(new, 9, torch.float32)
    expected = torch.softmax(scores if bias is None else scores + bias, -1) @ v.repeat_interleave(3, 1)
    torch.testing.assert_close(attend(q, k, v, bias), expected)


def test_the_bias_hides_later_keys() -> None:
    bias = causal_bias(2, 4, torch.float32)
    assert bias is not None
    assert bias.isinf().tolist() == [[False, False, False, True], [False, False, False, False]]
    assert causal_bias(1, 4, torch.float32) is None


def test_a_result_off_by_more_than_the_tolerance_raises() -> None:
    expected = torch.tensor([1.0, -4.0])
    paged_case.check_close("attention", torch.tensor([1.07, -4.0]), expected)
    with pytest.raises(InvariantError, match=r"off by 0\.025"):
        paged_case.check_close("attention", torch.tensor([1.1, -4.0]), expected)
    with pytest.raises(InvariantError, match="off by nan"):
        paged_case.check_close("attention", torch.tensor([float("nan"), -4.0]), expected)
