"""Open case O-04: large block ids and offsets."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from kvpager import KVLayout, PagedCache, Sequence, attention, open_cache
from tests.attention.oracle import attention as oracle
from tests.stamp import Stamp, T, prefill


@contextmanager
def steered(layout: KVLayout, num_blocks: int, first: int) -> Iterator[tuple[PagedCache, Sequence]]:
    """A cache whose blocks below ``first`` are all taken; their bytes are never touched."""
    with open_cache(layout, num_blocks=num_blocks) as cache:
        filler = cache.sequence()
        with cache.step({filler: first * layout.page_size}):
            pass
        yield cache, filler


def check_attention(cache: PagedCache, stamp: Stamp, length: int, query_heads: int) -> None:
    """One prefill through every backend and an independent oracle on the same numbers."""
    group = cache.layout.groups[0]
    generator = torch.Generator().manual_seed(0)
    dtype = {"float32": torch.float32, "float16": torch.float16}[cache.layout.dtype]
    seq = cache.sequence(T(5000, 5000 + length - 1))
    q = torch.randn(length, query_heads, group.head_dim, generator=generator)
    k = torch.randn(length, group.kv_heads, group.head_dim, generator=generator).to(dtype)
    v = torch.randn(length, group.kv_heads, group.head_dim, generator=generator).to(dtype)
    with cache.step({seq: length}) as step:
        for name in (each.name for each in attention.backends(cache.layout) if each.is_available):
            out = attention.select(name=name).plan(step.batch, cache.arena).run(0, q, k, v)
            expected = oracle(q.numpy(), k.float().numpy(), v.float().numpy(), position=0)
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
        blocks = step.batch.tables[0][0][: cache.layout.num_pages(length)]
        assert blocks.min() >= cache.pool.num_blocks - 40
    seq.free()


def check_fork(stamp: Stamp, seq: Sequence) -> None:
    twin = seq.fork()
    twin.append(T(900, 902))
    stamp.write(twin)
    for each in (seq, twin):
        stamp.verify(each)
    twin.free()


def test_a_block_ids_above_65535() -> None:
    layout = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="float32", page_size=1)
    with steered(layout, 70_000, 65_530) as (cache, _):
        stamp = Stamp(cache)
        seq = prefill(stamp, T(1, 16))
        assert seq.tables[0].mapped_blocks().tolist() == list(range(65_530, 65_546))
        stamp.verify(seq)
        check_fork(stamp, seq)
        seq.free()
        hit = cache.sequence([*T(1, 16), 17])
        assert hit.prefix_tokens == 16
        stamp.verify(hit)
        hit.free()
        cache.check()
    with steered(layout, 70_000, 69_968) as (cache, _):
        check_attention(cache, Stamp(cache), length=23, query_heads=2)


def test_b_offsets_above_2_to_31() -> None:
    """4.3 GB of K and 4.3 GB of V are reserved; only the last few blocks are ever touched."""
    layout = KVLayout(layers=1, kv_heads=8, head_dim=128, dtype="float16", page_size=16)
    num_blocks = 131_136
    elements = num_blocks * 16 * 8 * 128
    assert elements == 2**31 + 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with steered(layout, num_blocks, num_blocks - 4) as (cache, _):
        stamp = Stamp(cache)
        seq = prefill(stamp, T(1, 64))
        assert seq.tables[0].mapped_blocks().tolist() == list(range(num_blocks - 4, num_blocks))
        stamp.verify(seq)
        address = cache.pool.slot_address(num_blocks - 1, layer=0, head=7, half=1, slot=15)
        assert address - cache.arena.address == num_blocks * layout.block_stride - 128 * 2
        seq.free()
        cache.check()
    with steered(layout, num_blocks, num_blocks - 16) as (cache, _):
        stamp = Stamp(cache)
        seq = prefill(stamp, T(1, 70))
        check_fork(stamp, seq)
        seq.free()
        check_attention(cache, stamp, length=64, query_heads=16)
        cache.check()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "more than 1 GiB was touched"
