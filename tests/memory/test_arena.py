"""The bytes of the pool, on ordinary memory and as a torch tensor."""

from pathlib import Path

import numpy as np
import pytest

from kvpager import ConfigError, KVLayout, open_cache
from kvpager.memory.arena import Arena, HostArena
from kvpager.tiers.device import TorchArena, make_arena
from tests.contracts.arena import STRIDE, ArenaContract, ids
from tests.stamp import Stamp, T, prefill


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class TestHostArena(ArenaContract):
    def make(self, num_blocks: int, max_blocks: int | None = None) -> Arena:
        return HostArena(num_blocks, STRIDE, max_blocks)

    def test_it_lies_at_the_start_of_a_huge_page_and_never_moves(self) -> None:
        arena = HostArena(2, STRIDE, 1 << 20)
        address = arena.address
        assert address % (2 << 20) == 0
        arena.resize(1 << 20)
        arena.resize(1)
        assert arena.address == address

    def test_address_space_costs_nothing_until_it_is_touched(self) -> None:
        before = resident_bytes()
        arena = HostArena(1 << 20, 4096)  # 4 GiB
        arena.fill(ids(0, (1 << 20) - 1), 1)
        assert resident_bytes() - before < 64 << 20

    def test_a_shrink_gives_memory_back_to_the_system(self) -> None:
        arena = HostArena(1 << 14, 4096)  # 64 MiB
        arena.fill(np.arange(1 << 14), 1)
        before = resident_bytes()
        arena.resize(16)
        assert before - resident_bytes() > 48 << 20

    def test_more_than_the_address_space_is_a_config_error(self) -> None:
        with pytest.raises(ConfigError, match="smaller capacity"):
            HostArena(2**31 - 1, 2**40)


class TestTorchArena(ArenaContract):
    def make(self, num_blocks: int, max_blocks: int | None = None) -> Arena:
        return TorchArena("cpu", num_blocks, STRIDE, max_blocks)

    def test_a_cache_works_on_it_as_on_ordinary_memory(self) -> None:
        layout = KVLayout(2, 2, 8, dtype="bfloat16", page_size=4)
        arena = TorchArena("cpu", 12, layout.block_stride)
        with open_cache(layout, num_blocks=12, arena=arena) as cache:
            stamp = Stamp(cache)
            seq = prefill(stamp, T(1, 18))
            twin = seq.fork()
            seq.append(T(50, 54))
            twin.append(T(60, 63))
            for each in (seq, twin):
                stamp.write(each)
            for each in (seq, twin):
                stamp.verify(each)
            cache.check()

    def test_a_device_that_has_no_room_is_a_config_error(self) -> None:
        with pytest.raises(ConfigError, match="can't allocate"):
            TorchArena("cpu", 2**31 - 1, 2**31)


def test_the_device_name_chooses_the_arena() -> None:
    assert isinstance(make_arena("cpu", 1, 64, 1), HostArena)
    assert isinstance(make_arena("meta", 1, 64, 1), TorchArena)
