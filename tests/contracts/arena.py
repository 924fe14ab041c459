"""What every arena has to do, whatever device its bytes lie on. A subclass gives ``make``."""

import numpy as np
import pytest

from kvpager import ConfigError
from kvpager.memory.arena import Arena

STRIDE = 192


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


class ArenaContract:
    def make(self, num_blocks: int, max_blocks: int | None = None) -> Arena:
        raise NotImplementedError

    def bytes_of(self, arena: Arena, block: int) -> set[int]:
        """The distinct byte values of a block."""
        return set(np.asarray(arena.blocks[block]).tolist())  # type: ignore[attr-defined]

    def test_it_starts_at_an_aligned_address(self) -> None:
        arena = self.make(4)
        assert arena.address % 64 == 0
        assert (arena.num_blocks, arena.max_blocks, arena.block_stride) == (4, 4, STRIDE)

    def test_fill_sets_every_byte_of_its_blocks_and_no_other(self) -> None:
        arena = self.make(4)
        arena.fill(ids(0, 1, 2, 3), 7)
        arena.fill(ids(1, 3), 255)
        assert [self.bytes_of(arena, block) for block in range(4)] == [{7}, {255}, {7}, {255}]

    def test_is_filled_asks_for_every_byte(self) -> None:
        arena = self.make(3)
        arena.fill(ids(0, 1, 2), 255)
        arena.blocks[1, STRIDE - 1] = 254  # type: ignore[attr-defined]
        assert arena.is_filled(ids(0, 1, 2), 255).tolist() == [True, False, True]
        assert arena.is_filled(ids(), 255).tolist() == []

    def test_copy_copies_whole_blocks_pair_by_pair(self) -> None:
        arena = self.make(6)
        for block in range(6):
            arena.fill(ids(block), 10 + block)
        arena.copy(ids(5, 0), ids(1, 4))
        assert [self.bytes_of(arena, block) for block in range(6)] == [{10}, {15}, {12}, {13}, {10}, {15}]

    def test_a_copy_of_nothing_is_nothing(self) -> None:
        arena = self.make(2)
        arena.fill(ids(0, 1), 3)
        arena.copy(ids(), ids())
        arena.fill(ids(), 9)
        assert self.bytes_of(arena, 0) == self.bytes_of(arena, 1) == {3}

    def test_growing_and_shrinking_keep_the_bytes_of_blocks_that_stay(self) -> None:
        arena = self.make(3, 40)
        for block in range(3):
            arena.fill(ids(block), block + 1)
        for size in (40, 2, 17, 1, 40):
            arena.resize(size)
            assert arena.num_blocks == size
            assert [self.bytes_of(arena, block) for block in range(min(size, 1))] == [{1}]
        arena.fill(ids(39), 8)
        assert self.bytes_of(arena, 39) == {8}

    def test_it_never_grows_past_what_was_asked_for_at_the_start(self) -> None:
        arena = self.make(3, 5)
        arena.fill(ids(2), 9)
        with pytest.raises(ConfigError, match="can grow to 5 blocks, not 6"):
            arena.resize(6)
        assert arena.num_blocks == 3
        assert self.bytes_of(arena, 2) == {9}
        arena.resize(5)
