"""Quantized pools: scales travel with their blocks, and by hand what is written is read, rounded."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import ConfigError, KVLayout, LayerSpec, PagedCache, open_cache
from kvpager.cache.sequence import Sequence
from kvpager.memory.layout import QUANTIZED
from kvpager.types import FaultKind
from tests.cache.caches import published_blocks
from tests.quantized import pool_bytes, scale_of
from tests.stamp import T

pytestmark = pytest.mark.parametrize("dtype", QUANTIZED)

ROUNDING = {"int8": 2.0**-6, "float8_e4m3": 2.0**-4}  # of the largest value of a page; more than a unit


def layout_of(dtype: str) -> KVLayout:
    return KVLayout(layers=2, kv_heads=2, head_dim=4, dtype=dtype, page_size=4)


def rows(count: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """K and V [layers, count, kv_heads, head_dim] with magnitudes up to 1."""
    both = torch.rand(2, 2, count, 2, 4, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return both[0].to(dtype), both[1].to(dtype)


def is_near(dtype: str, found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], size: float = 1.0) -> bool:
    tolerance = ROUNDING[dtype] * size
    return all(bool(((a - b).abs() <= tolerance).all()) for a, b in zip(found, expected, strict=True))


def held(cache: PagedCache, seq: Sequence) -> bytes:
    """What a sequence reads, as bytes."""
    return b"".join(half.numpy().tobytes() for half in seq.read(0, seq.length))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_any_float_type_are_read_as_float32_rounded(dtype: str, given: torch.dtype) -> None:
    with open_cache(layout_of(dtype), num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        k, v = rows(11, dtype=given)
        seq.write(0, k, v)
        for start, stop in ((0, 11), (3, 9), (10, 11), (0, 0), (11, 11)):
            found = seq.read(start, stop)
            assert {half.dtype for half in found} == {torch.float32}
            assert is_near(dtype, found, (k[:, start:stop].float(), v[:, start:stop].float()))
        assert not torch.equal(seq.read(0, 11)[0], k.float())
        cache.check()


def test_rows_of_another_type_are_refused(dtype: str) -> None:
    with open_cache(layout_of(dtype), num_blocks=8) as cache:
        seq = cache.sequence()
        for wrong in (torch.float64, torch.int8, torch.int32):
            k, v = rows(3, dtype=wrong)
            with pytest.raises(ConfigError, match=f"the cache holds {dtype}"):
                seq.write(0, k, v)
        assert seq.length == 0
        seq.write(0, *rows(3))


def test_layers_of_several_groups(dtype: str) -> None:
    specs = [LayerSpec(2, 4), LayerSpec(2, 4, window=100)]
    with open_cache(KVLayout.mixed(specs, dtype=dtype, page_size=4), num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        seq.write(0, *rows(11))
        assert is_near(dtype, seq.read(0, 11), rows(11))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 4), (1, 3), (3, 4), (2, 6), (4, 10), (9, 11), (0, 11)])
@pytest.mark.parametrize("size", [2.0**-10, 1.0, 2.0**10])
def test_overwriting_a_part_of_a_page_keeps_the_rest_of_it(dtype: str, start: int, stop: int, size: float) -> None:
    with open_cache(layout_of(dtype), num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        old, new = rows(11), tuple(half * size for half in rows(11, seed=1))
        seq.write(0, *old)
        before = seq.read(0, 11)
        seq.write(start, new[0][:, start:stop], new[1][:, start:stop])
        expected = [half.clone() for half in old]
        for half, fresh in zip(expected, new, strict=True):
            half[:, start:stop] = fresh[:, start:stop]
        assert is_near(dtype, seq.read(0, 11), (expected[0], expected[1]), max(size, 1.0))
        untouched = start // 4 * 4
        for half, bits in zip(seq.read(0, untouched), before, strict=True):
            assert torch.equal(half, bits[:, :untouched])


def test_a_fork_shares_and_a_copy_takes_the_scales_along(dtype: str) -> None:
    with open_cache(layout_of(dtype), num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        seq.write(0, *rows(6))
        twin = seq.fork()
        before = held(cache, seq)
        assert held(cache, twin) == before
        twin.write(6, *(half * 100 for half in rows(1, seed=1)))  # a scale that grows, on the copy only
        assert cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages == 1
        assert held(cache, seq) == before
        assert is_near(dtype, tuple(half[:, :6] for half in twin.read(0, 6)), rows(6), 100.0)
        seq.write(6, *rows(1, seed=2))  # the last owner writes in place
        assert cache.statistics().faults[FaultKind.COPY_ON_WRITE].pages == 1
        assert is_near(dtype, seq.read(0, 6), rows(6))


def test_truncating_keeps_the_scale_and_a_new_page_begins_with_its_own(dtype: str) -> None:
    with open_cache(layout_of(dtype), num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        k, v = rows(6)
        k[:, 5], v[:, 5] = k[:, 5] * 100, v[:, 5] * 100
        seq.write(0, k, v)
        seq.truncate(5)
        seq.write(5, *rows(2, seed=1))
        assert is_near(dtype, seq.read(4, 5), (k[:, 4:5], v[:, 4:5]), 100.0)
        assert is_near(dtype, seq.read(5, 7), rows(2, seed=1), 100.0)
        seq.truncate(4)
        seq.write(4, *rows(3, seed=2))
        assert is_near(dtype, seq.read(4, 7), rows(3, seed=2))


def test_shared_and_published_pages_are_never_written(dtype: str) -> None:
    """Prefix hits, whole and inside a page, by tokens that need larger scales than what is there."""
    from kvpager.attention.reference import ReferenceBackend

    def compute(cache: PagedCache, seq: Sequence, size: float) -> None:
        with cache.step({seq: seq.num_tokens - seq.length}) as step:
            plan = ReferenceBackend().plan(step.batch, cache.arena)
            k, v = rows(step.batch.num_tokens)
            for layer in range(2):
                plan.run(layer, torch.zeros(k.shape[1], 2, 4), k[layer] * size, v[layer] * size)

    with open_cache(layout_of(dtype), num_blocks=16, debug=True) as cache:
        first = cache.sequence(T(1, 14))
        compute(cache, first, 1.0)
        published, read = published_blocks(cache), held(cache, first)
        whole, inside = cache.sequence(T(1, 20)), cache.sequence([*T(1, 10), 99, 98, 97])
        assert (whole.prefix_tokens, inside.prefix_tokens) == (12, 10)
        compute(cache, whole, 1000.0)
        compute(cache, inside, 1000.0)
        assert {block: published_blocks(cache)[block] for block in published} == published
        assert held(cache, first) == read
        assert held(cache, whole)[: 12 * 2 * 4 * 4] == read[: 12 * 2 * 4 * 4]


def test_a_failed_step_leaves_values_within_a_unit_of_the_scale_it_left(dtype: str) -> None:
    layout = layout_of(dtype)
    with open_cache(layout, num_blocks=8, debug=True) as cache:
        seq = cache.sequence()
        seq.write(0, *rows(2))
        block = int(seq.tables[0].snapshot()[0])
        scale = scale_of(pool_bytes(cache), layout, 0, block, 0, 0)
        k, v = rows(1, seed=1)
        step = cache.step({seq: 1})
        for layer in range(2):
            where = step.batch.token_blocks(0), step.batch.positions() % 4
            cache.access.write(layer, *where, k[layer] * 100, v[layer] * 100)
        step.__exit__(RuntimeError, RuntimeError("the model failed"), None)
        assert seq.length == 2
        assert scale_of(pool_bytes(cache), layout, 0, block, 0, 0) > scale
        assert is_near(dtype, seq.read(0, 2), rows(2), 100.0)


def test_blocks_keep_their_meaning_when_the_pool_shrinks(dtype: str) -> None:
    with open_cache(layout_of(dtype), num_blocks=32, debug=True) as cache:
        others = [cache.sequence() for _ in range(5)]
        for other in others:
            other.write(0, *rows(16))
        seq = cache.sequence()
        seq.write(0, *rows(13, seed=1))
        before = held(cache, seq)
        cache.free(others)
        cache.resize(4)
        assert held(cache, seq) == before
        assert np.isfinite(seq.read(0, 13)[0].numpy()).all()
