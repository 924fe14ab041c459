"""Copies of blocks against numpy: inside a pool, gathered into a buffer, scattered back; checksums on the way."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import kvpager.native
from kvpager.memory.arena import HostArena

POISON = 0xA5
# (block bytes, stride, blocks): odd sizes, one byte, blocks that are cut in pieces, totals that go past the caches
SHAPES = {
    "1B": (1, 64, 40),
    "100B": (100, 128, 33),
    "4097B": (4097, 4160, 21),
    "64K": (65536, 65536, 48),
    "300K": (300_032, 300_096, 12),
    "odd-stride": (70_001, 70_003, 40),
}

Threads = Callable[[int], AbstractContextManager[None]]


class Pool:
    """``bytes`` uint8 [blocks, stride], poison between the blocks and around them."""

    def __init__(self, native: ModuleType, shape: str, blocks: int | None = None, seed: int = 0) -> None:
        self.block_bytes, stride, count = SHAPES[shape]
        count = blocks or count
        self._whole = np.full((count + 2, stride), POISON, np.uint8)
        self.bytes = self._whole[1:-1]
        filling = np.random.default_rng(seed).integers(0, 256, (count, self.block_bytes), np.uint8)
        self.bytes[:, : self.block_bytes] = filling
        self.blocks: Any = native.Blocks(
            address=self.bytes.ctypes.data, num_blocks=count, stride=stride, bytes=self.block_bytes
        )

    @property
    def content(self) -> np.ndarray:
        return self.bytes[:, : self.block_bytes]

    def check_poison(self) -> None:
        assert (self._whole[[0, -1]] == POISON).all()
        assert (self.bytes[:, self.block_bytes :] == POISON).all()


def shuffled(count: int, taken: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).permutation(count)[:taken].astype(np.int32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_copy_inside_a_pool(native: ModuleType, isa: str, shape: str, dtype: type) -> None:
    pool = Pool(native, shape)
    ids = shuffled(len(pool.bytes), len(pool.bytes)).astype(dtype)
    half = len(ids) // 2
    sources, targets = ids[:half], ids[half : 2 * half]
    expected = pool.content.copy()
    expected[targets] = expected[sources]
    native.copy_blocks(pool.blocks, sources, targets)
    assert np.array_equal(pool.content, expected)
    pool.check_poison()


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_gather_and_scatter_with_checksums(
    native: ModuleType, isa: str, shape: str, count: int, threads: Threads
) -> None:
    pool = Pool(native, shape)
    ids = shuffled(len(pool.bytes), len(pool.bytes) * 3 // 4)
    buffer = Pool(native, shape, len(ids) + 1, seed=1)
    last = buffer.content[-1].copy()
    sums, back = np.zeros(len(ids), np.uint64), np.zeros(len(ids), np.uint64)
    with threads(count):
        native.gather_blocks(pool.blocks, ids, buffer.blocks)
        assert np.array_equal(buffer.content[:-1], pool.content[ids])
        buffer.content[:-1] = 0
        native.gather_blocks(pool.blocks, ids, buffer.blocks, sums)
        assert np.array_equal(buffer.content[:-1], pool.content[ids])
        assert np.array_equal(buffer.content[-1], last)
        expected = pool.content.copy()
        for checksums in (None, back):
            pool.content[ids] = 0
            native.scatter_blocks(pool.blocks, ids, buffer.blocks, checksums)
            assert np.array_equal(pool.content, expected)
    for block, found in zip(ids.tolist(), sums.tolist(), strict=True):
        assert found == native.checksum(pool.content[block].ctypes.data, pool.block_bytes)
    assert np.array_equal(sums, back)
    pool.check_poison()
    buffer.check_poison()


def test_one_source_may_go_to_many_targets(native: ModuleType) -> None:
    pool = Pool(native, "100B")
    first = pool.content[0].copy()
    native.copy_blocks(pool.blocks, np.zeros(3, np.int32), np.array([4, 9, 2]))
    assert (pool.content[[0, 2, 4, 9]] == first).all()
    with_gaps = np.array([1, 0, 1, 0], np.int32)[::2]  # a strided view of ids
    buffer = Pool(native, "100B", 2)
    native.gather_blocks(pool.blocks, with_gaps, buffer.blocks)
    assert (buffer.content == pool.content[1]).all()


def test_nothing_to_copy(native: ModuleType) -> None:
    pool, buffer = Pool(native, "100B"), Pool(native, "100B", 2)
    before, none = pool.content.copy(), np.empty(0, np.int32)
    native.copy_blocks(pool.blocks, none, none)
    native.gather_blocks(pool.blocks, none, buffer.blocks, np.empty(0, np.uint64))
    native.scatter_blocks(pool.blocks, none, buffer.blocks)
    assert np.array_equal(pool.content, before)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("sources", "targets", "error", "message"),
    [
        (ids(0, 33), ids(1, 2), IndexError, r"sources\[1\] is 33, outside 0 to 32"),
        (ids(0), ids(-1), IndexError, r"targets\[0\] is -1"),
        (np.array([2**40]), ids(1), IndexError, r"sources\[0\] is 1099511627776"),
        (ids(0, 1), ids(2), ValueError, "sources and targets must be equally long"),
        (ids(0, 1), ids(2, 2), ValueError, "targets names block 2 twice"),
        (ids(0, 1), ids(1, 2), ValueError, "sources and targets both name block 1"),
        (np.array([0.0]), ids(1), TypeError, "sources must be int32 or int64"),
        (np.array([[0]]), ids(1), TypeError, "sources"),
    ],
    ids=["too-large", "negative", "huge", "lengths", "twice", "both", "float", "two-dimensional"],
)
def test_wrong_ids_are_refused(
    native: ModuleType, sources: np.ndarray, targets: np.ndarray, error: type[Exception], message: str
) -> None:
    pool = Pool(native, "100B")
    before = pool.content.copy()
    with pytest.raises(error, match=message):
        native.copy_blocks(pool.blocks, sources, targets)
    assert np.array_equal(pool.content, before)
    native.copy_blocks(pool.blocks, ids(0, 1), ids(2, 3))
    assert np.array_equal(pool.content[2:4], before[:2])


def test_wrong_buffers_are_refused(native: ModuleType) -> None:
    pool, buffer = Pool(native, "100B"), Pool(native, "100B", 2)
    with pytest.raises(ValueError, match="buffer: has fewer blocks"):
        native.gather_blocks(pool.blocks, ids(0, 1, 2), buffer.blocks)
    with pytest.raises(ValueError, match="buffer: its blocks must be as large"):
        native.gather_blocks(pool.blocks, ids(0), Pool(native, "1B").blocks)
    with pytest.raises(ValueError, match="buffer: overlaps the pool"):
        native.scatter_blocks(pool.blocks, ids(0), pool.blocks)
    with pytest.raises(ValueError, match="ids names block 4 twice"):
        native.scatter_blocks(pool.blocks, ids(4, 4), buffer.blocks)
    with pytest.raises(ValueError, match="checksums must be as long"):
        native.gather_blocks(pool.blocks, ids(0, 1), buffer.blocks, np.zeros(1, np.uint64))
    with pytest.raises(TypeError, match="checksums"):
        native.gather_blocks(pool.blocks, ids(0, 1), buffer.blocks, np.zeros(2, np.int32))
    native.gather_blocks(pool.blocks, ids(0, 1), buffer.blocks, np.zeros(2, np.uint64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": 0}, "address"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"bytes": 129}, "bytes"),
        ({"bytes": 0}, "bytes"),
    ],
    ids=["address", "num_blocks", "too-long", "empty"],
)
def test_wrong_blocks_are_refused(native: ModuleType, change: dict[str, int], message: str) -> None:
    right = {"address": 64, "num_blocks": 1, "stride": 128, "bytes": 128}
    native.Blocks(**right)
    with pytest.raises(ValueError, match=message):
        native.Blocks(**right | change)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "numpy"])
def test_an_arena_copies_alike_with_and_without_kernels(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    calls = []
    real = native.copy_blocks
    monkeypatch.setattr(native, "copy_blocks", lambda *args: (calls.append(1), real(*args)))
    if not is_native:
        monkeypatch.setattr(kvpager.native, "module", lambda: None)
    arena = HostArena(30, 4160)
    arena.blocks[:] = np.random.default_rng(0).integers(0, 256, arena.blocks.shape, np.uint8)
    expected = arena.blocks.copy()
    order = shuffled(30, 24)
    expected[order[12:]] = expected[order[:12]]
    arena.copy(order[:12], order[12:])
    assert np.array_equal(arena.blocks, expected)
    assert len(calls) == is_native
