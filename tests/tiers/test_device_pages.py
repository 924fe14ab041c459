"""Blocks that no processor can reach are copied by a worker; a torch tensor on the CPU stands in for a GPU."""

import numpy as np
import pytest
import torch

from kvpager import HostTier, KVLayout, open_cache
from kvpager.checksum import checksum
from kvpager.errors import WrongContent
from kvpager.memory.block_pool import BlockPool
from kvpager.tiers.device import TorchArena
from kvpager.tiers.device_pages import DevicePages, FarMemory
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey, TierKind
from tests.stamp import Stamp, T, prefill

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=32, dtype="bfloat16", page_size=4)
KEY = ContentKey(bytes(32))


def far_arena(num_blocks: int) -> TorchArena:
    return TorchArena("cpu", num_blocks, LAYOUT.block_stride)


def far_pages(num_blocks: int) -> tuple[DevicePages, BlockPool]:
    pool = BlockPool(LAYOUT, far_arena(num_blocks))
    return DevicePages(pool, lambda blocks: None, lambda blocks, cached: None), pool


def test_a_block_is_read_out_with_its_checksum() -> None:
    pages, pool = far_pages(4)
    (block,) = pool.allocate(1)
    pool.arena.fill(np.array([block]), 7)
    [slot] = pages.hold([int(block)], [Page(KEY, KEY)])
    assert slot.memory is None
    page = np.zeros(pages.page_bytes, np.uint8)
    assert pages.read([slot], [page]) == [checksum(np.full(pages.page_bytes, 7, np.uint8))]
    assert (page == 7).all()
    assert pool.counts().pinned == 1
    pages.let_go([slot])
    assert pool.counts().pinned == 0


def test_a_page_is_written_into_its_block_and_no_other() -> None:
    pages, pool = far_pages(4)
    blocks = pool.allocate(2)
    slot = pages.landing(int(blocks[1]), KEY)
    assert pages.write([slot], [np.full(pages.page_bytes, 9, np.uint8)]) == [None]
    assert pool.arena.is_filled(blocks, 9).tolist() == [False, True]


def test_a_torch_arena_is_far_memory_and_a_host_arena_is_not() -> None:
    assert isinstance(far_arena(1), FarMemory)
    with open_cache(LAYOUT, num_blocks=1) as cache:
        assert not isinstance(cache.arena, FarMemory)


@pytest.mark.parametrize("write_back", ["through", "back", "selective"])
def test_pages_go_down_and_come_back_with_every_byte(write_back: str) -> None:
    with open_cache(
        LAYOUT, num_blocks=6, arena=far_arena(6), tiers=[HostTier(pages=32)], write_back=write_back, debug=True
    ) as cache:
        stamp = Stamp(cache)
        for start in (1, 101, 201, 1):
            seq = prefill(stamp, T(start, start + 20))
            stamp.verify(seq)
            cache.check()
            seq.free()
        assert seq.prefix_by_tier[TierKind.HOST] > 0


def test_a_cpu_tensor_has_no_order_to_wait_for() -> None:
    assert far_arena(1).mark() is None


def test_a_page_that_changed_in_memory_is_not_put_on_the_device() -> None:
    """Memory of the host is copied to far memory unread: whoever takes it compares the checksum."""
    pages, pool = far_pages(4)
    blocks = pool.allocate(2)
    sound, wrong = (pages.landing(block, KEY) for block in blocks.tolist())
    page = np.full(pages.page_bytes, 9, np.uint8)
    sound.checksum = checksum(page)
    wrong.checksum = sound.checksum ^ 1
    errors = pages.write([wrong, sound], [page, page])
    assert isinstance(errors[0], WrongContent)
    assert errors[1] is None
    assert pool.arena.is_filled(blocks, 9).tolist() == [True, False]


@pytest.mark.parametrize("tier_dtype", [None, "int8"])
def test_a_page_that_changed_in_the_host_tier_is_a_miss_of_far_or_converted_pages(tier_dtype: str | None) -> None:
    options = {"tier_dtype": tier_dtype} if tier_dtype else {"arena": far_arena(64)}
    with open_cache(LAYOUT, num_blocks=64, tiers=[HostTier(pages=8)], **options) as cache:
        seq = cache.sequence(T(1, 16))
        rows = torch.full((LAYOUT.layers, 16, 2, 32), 0.5, dtype=torch.bfloat16)  # finite, for int8 takes nothing else
        seq.write(0, rows, rows)
        seq.free()
        assert cache.lower.settle(60)
        cache._reclaimer.make_free(64)
        host = cache.lower.migration.tiers[0]
        host._arena.blocks[host._book._slot_of[host.pages()[1].key]][100] ^= 4
        again = cache.sequence([*T(1, 16), 99])
        assert again.prefix_tokens == 4, "the page before the wrong one"
        assert host.statistics().quarantined == 1
        cache.check()
