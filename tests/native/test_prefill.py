"""Many new tokens at once in C++: against fp64 over every way to lie and to compute, and bit for bit against itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import numpy as np
import pytest
import torch

from kvpager import native as native_module
from kvpager.attention.backend import LayerOptions

if native_module.module() is None:
    pytest.skip(f"no native kernels: {native_module.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import attend_partly, merge_partials
from tests.native.paged import Paged

Threads = Callable[[int], AbstractContextManager[None]]
STORED = ["float32", "bfloat16", "float16", "int8", "float8_e4m3"]


def random_case(seed: int) -> Paged:
    rng = np.random.default_rng(1000 + seed)
    queries = rng.integers(17, 150, int(rng.integers(1, 4))).tolist()
    kv_heads, group = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 4, 7]))
    sinks = torch.from_numpy(rng.standard_normal(kv_heads * group)).float()
    return Paged(
        [int(count + rng.integers(0, 400)) for count in queries],
        queries,
        kv_heads=kv_heads,
        group=group,
        head_dim=int(rng.choice([1, 7, 32, 33, 64, 80, 96, 128, 255, 256])),
        page_size=int(rng.choice([1, 3, 8, 16, 32, 48, 64, 128])),
        dtype=STORED[seed % len(STORED)],
        q_dtype=str(rng.choice(["float32", "bfloat16", "float16"])),
        window=[None, None, 5, 40, 100][rng.integers(5)],
        options=LayerOptions(
            scale=[None, 0.3, -0.2][rng.integers(3)],
            softcap=[None, None, 5.0][rng.integers(3)],
            sinks=[None, sinks][rng.integers(2)],
        ),
        order=seed,
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_shapes_agree_with_fp64(isa: str, seed: int) -> None:
    random_case(seed).check()


@pytest.mark.parametrize("q_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", STORED)
def test_more_keys_than_are_packed_at_once(isa: str, dtype: str, q_dtype: str) -> None:
    Paged([1300], [40], group=3, head_dim=32, page_size=16, dtype=dtype, q_dtype=q_dtype).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_that_keep_growing(isa: str, dtype: str) -> None:
    """Each tile holds a greater score than all before it: the sums so far are rescaled again and again."""
    case = Paged([350], [30], head_dim=32, dtype=dtype, q_dtype=dtype, options=LayerOptions(scale=1.0))
    growing = torch.linspace(0, 1.5, 350).to(case.dtype_torch)
    for page, block in enumerate(case.tables[0].tolist()):
        part = growing[page * 4 : page * 4 + 4]
        case.view[block, :, 0, : len(part)] = part[:, None]
    case.keys[0][:] = growing.double()[:, None, None]
    case.q.copy_(case.q.abs())
    case.check()


@pytest.mark.parametrize("window", [1, 63, 64, 65, 511, 513])
def test_windows_at_the_borders_of_tiles(isa: str, window: int) -> None:
    Paged([1200, 130], [70, 60], window=window, page_size=16).check()


@pytest.mark.parametrize("dtype", STORED)
def test_the_order_of_blocks_changes_no_bit(isa: str, dtype: str) -> None:
    found = [Paged([700, 90], [50, 90], dtype=dtype, q_dtype="bfloat16", order=order).run() for order in range(3)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_threads_and_batch_mates_change_no_bit(isa: str, threads: Threads) -> None:
    lengths, queries = [1500, 33, 400], [600, 20, 100]
    together = Paged(lengths, queries, dtype="bfloat16", q_dtype="bfloat16")
    with threads(1):
        one = together.run()
    with threads(3):
        assert torch.equal(together.run(), one)
    for name, out in enumerate(one.split(queries)):
        alone = Paged([lengths[name]], [queries[name]], dtype="bfloat16", q_dtype="bfloat16", names=[name])
        assert torch.equal(alone.run(), out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_over_pages_apart_merge_to_the_whole(isa: str, dtype: str) -> None:
    case = Paged([400, 60], [30, 60], dtype=dtype, q_dtype=dtype)
    parity = [[np.arange(odd, len(table), 2) for table in case.tables] for odd in (0, 1)]
    parts = [attend_partly(case.subset(keep), case.layer(), case.q, case.options) for keep in parity]
    expected = case.expected()
    error = np.abs(merge_partials(parts)[0].double().numpy() - expected).max() / np.abs(expected).max()
    assert error <= (1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_nan_of_a_token_is_not_lost(native: ModuleType, isa: str, dtype: str) -> None:
    case = Paged([70], [20], dtype=dtype, q_dtype=dtype)
    case.view[case.tables[0][13], 0, 0, 1, 5] = float("nan")  # the key at position 53, KV head 0
    out = case.run()
    assert out[3:, :2].isnan().all()
    assert out[:3].isfinite().all()
    assert out[:, 2:].isfinite().all()
