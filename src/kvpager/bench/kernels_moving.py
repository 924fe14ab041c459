"""Bytes that move: new K and V into their slots, whole blocks, blocks into a buffer, and copies with a checksum.

Limits of copies are the better of memcpy and of stores around the caches, of as many bytes in the same memory.
"""

import itertools
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from kvpager.assemble import open_cache
from kvpager.bench.interleaved import Call, Ratio, run_in_turn
from kvpager.bench.limits import copy_limits, native_module
from kvpager.bench.paged_case import LLAMA, SMOL, Shape
from kvpager.bench.report import SEED, Result
from kvpager.bench.scale import Scale
from kvpager.config import DEFAULT_PAGE_SIZE
from kvpager.errors import InvariantError
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.rows import cache_layer, layer_view

BLOCK_BYTES = {
    "smol": 30 * SMOL.bytes_per_token * DEFAULT_PAGE_SIZE,
    "llama": 32 * LLAMA.bytes_per_token * DEFAULT_PAGE_SIZE,
}

KV_WRITE_SHARE = 0.75  # at least
COPY_SHARE = 0.9
CHECKSUM_SHARE = 0.8
VS_INDEX_PUT = 3.0


def measure(scale: Scale) -> list[Result]:
    """Blocks hold all layers of SmolLM2, the larger ones of Llama 3 8B."""
    copy, gather, gather_sums = _blocks(BLOCK_BYTES["smol"], scale)
    large_copy, large_gather, _ = _blocks(BLOCK_BYTES["llama"], scale)
    return [
        _kv_write_prefill(LLAMA, scale).result("kv_write_prefill_memcpy_share", "share", at_least=KV_WRITE_SHARE),
        _kv_write_prefill(SMOL, scale).result("kv_write_prefill_memcpy_share_smol", "share"),
        *_kv_write_decode(LLAMA, "", scale, VS_INDEX_PUT),
        *_kv_write_decode(SMOL, "_smol", scale, None),
        copy.result("block_copy_memcpy_share", "share", at_least=COPY_SHARE),
        large_copy.result("block_copy_memcpy_share/llama", "share"),
        gather.result("gather_memcpy_share", "share", at_least=COPY_SHARE),
        large_gather.result("gather_memcpy_share/llama", "share"),
        _checksum_copy(scale).result("checksum_copy_memcpy_share", "share", at_least=CHECKSUM_SHARE),
        gather_sums.result("gather_checksum_memcpy_share", "share"),
    ]


# -- new tokens ---------------------------------------------------------------------------------------------------


class _Writes:
    """K and V rows of some tokens, and sets of slots they are written to in turn, all over a pool of one layer."""

    def __init__(self, shape: Shape, tokens: int, pool_bytes: int, is_decode: bool) -> None:
        self.module = native_module()
        self.layout = KVLayout(1, shape.kv_heads, shape.head_dim, "bfloat16")
        page_size = self.layout.page_size
        blocks = pool_bytes // self.layout.block_stride
        self.cache = open_cache(self.layout, num_blocks=blocks, prefix_cache=False)
        self.cache.arena.fill(np.arange(blocks), 0)  # touched: no page is made while the clock runs
        rows = torch.randn(2, tokens, shape.kv_heads, shape.head_dim, generator=torch.Generator().manual_seed(SEED))
        self.rows = rows.bfloat16()
        rng = np.random.default_rng(SEED)
        ids = rng.permutation(blocks).astype(np.int32)
        pages = 1 if is_decode else page_size  # tokens of a block: one, or a whole page
        num_sets = blocks * pages // tokens
        used = ids[: num_sets * tokens // pages].reshape(num_sets, -1)
        if is_decode:  # every slot of the pool has its turn, so that none is still in a cache
            first = np.tile(rng.integers(0, page_size, used.shape, np.int32), (page_size, 1))
            self.blocks = np.tile(used, (page_size, 1))
            self.slots = (first + np.arange(page_size, dtype=np.int32).repeat(num_sets)[:, None]) % page_size
        else:
            self.blocks = used.repeat(page_size, axis=1)
            self.slots = np.tile(np.arange(page_size, dtype=np.int32), used.shape)

    @property
    def num_sets(self) -> int:
        return len(self.blocks)

    @property
    def num_bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    def native(self) -> Call:
        module, (k, v) = self.module, self.rows
        layer = cache_layer(module, self.cache.arena, self.layout, 0)
        slots = [
            module.TokenSlots(blocks, slots, self.cache.arena.num_blocks, self.layout.page_size)
            for blocks, slots in zip(self.blocks, self.slots, strict=True)
        ]
        turns = itertools.cycle(slots)
        stride = k.stride()

        def call() -> None:
            module.kv_write(
                layer, next(turns), k.data_ptr(), stride[0], stride[1], v.data_ptr(), stride[0], stride[1], "bfloat16"
            )

        return call

    def index_put(self) -> Call:
        view = layer_view(self.cache.arena, self.layout, 0)
        k, v = self.rows
        indices = self._indices()
        half = len(indices) // 2  # not the slots that the other call has just written
        turns = itertools.cycle(indices[half:] + indices[:half])

        def call() -> None:
            blocks, slots = next(turns)
            view[blocks, :, 0, slots] = k
            view[blocks, :, 1, slots] = v

        return call

    def _indices(self) -> list[tuple[Tensor, Tensor]]:
        return [
            (torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(slots.astype(np.int64)))
            for blocks, slots in zip(self.blocks, self.slots, strict=True)
        ]

    def check(self, call: Call) -> None:
        """Raises InvariantError unless the call, made once per set, writes every row to its slot and nothing else."""
        view = layer_view(self.cache.arena, self.layout, 0)
        view.zero_()
        for _ in range(self.num_sets):
            call()
        for blocks, slots in self._indices():
            for half in range(2):
                if not view[blocks, :, half, slots].equal(self.rows[half]):
                    raise InvariantError("a KV write left other bytes in the cache; it was not timed")
                view[blocks, :, half, slots] = 0.0
        if view.count_nonzero():
            raise InvariantError("a KV write left bytes outside its slots; it was not timed")


def _kv_write_prefill(shape: Shape, scale: Scale) -> Ratio:
    writes = _Writes(shape, scale.prefill_rows, scale.cold_bytes, is_decode=False)
    write = writes.native()
    writes.check(write)
    limits = copy_limits(writes.cache.arena.address, writes.rows.data_ptr(), writes.num_bytes, writes.num_sets)
    times = run_in_turn([write, *limits], scale.seconds)
    return times.ratio(times.fastest((1, 2)), 0)


def _kv_write_decode(shape: Shape, suffix: str, scale: Scale, at_least: float | None) -> list[Result]:
    writes = _Writes(shape, scale.decode_rows, scale.cold_bytes, is_decode=True)
    write, index_put = writes.native(), writes.index_put()
    writes.check(write)
    writes.check(index_put)
    times = run_in_turn([write, index_put], scale.seconds)
    return [
        times.ratio(1, 0).result(f"kv_write_decode{suffix}_vs_index_put", at_least=at_least),
        Result(f"kv_write_decode{suffix}_us", times.median(0) * 1e6, "us"),
    ]


# -- whole blocks -------------------------------------------------------------------------------------------------


def _blocks(block_bytes: int, scale: Scale) -> tuple[Ratio, Ratio, Ratio]:
    """Shares of the limit: random blocks to random blocks of a pool, into one buffer, and the same with checksums."""
    module = native_module()
    half = scale.cold_bytes // 2 // block_bytes
    pool, buffer = _random_arena(2 * half, block_bytes), HostArena(half, block_bytes)
    buffer.fill(np.arange(half), 0)
    ids = np.random.default_rng(SEED).permutation(2 * half).astype(np.int32)
    sources, targets = ids[:half].copy(), ids[half:].copy()
    sums = np.zeros(half, np.uint64)
    in_pool, in_buffer = _native_blocks(module, pool), _native_blocks(module, buffer)

    def copy() -> None:
        module.copy_blocks(in_pool, sources, targets)

    def gather() -> None:
        module.gather_blocks(in_pool, sources, in_buffer)

    def gather_and_sum() -> None:
        module.gather_blocks(in_pool, sources, in_buffer, sums)

    expected = pool.blocks[sources]
    copy()
    _check_equal("block copy", pool.blocks[targets], expected)
    for call in (gather, gather_and_sum):
        buffer.fill(np.arange(half), 0)
        call()
        _check_equal("gather", buffer.blocks, expected)
    if any(int(sums[i]) != module.checksum(buffer.address + i * block_bytes, block_bytes) for i in range(half)):
        raise InvariantError("a checksum made while copying is not that of the bytes; it was not timed")
    num_bytes = half * block_bytes
    inside = _share(copy, copy_limits(pool.address + num_bytes // 64 * 64, pool.address, num_bytes), scale)
    limits = copy_limits(buffer.address, pool.address, num_bytes)
    return inside, _share(gather, limits, scale), _share(gather_and_sum, limits, scale)


def _checksum_copy(scale: Scale) -> Ratio:
    """One range: what is copied, and the checksum of it."""
    module = native_module()
    num_bytes = scale.cold_bytes // 2
    source, target = _random_arena(1, num_bytes), HostArena(1, num_bytes)
    target.fill(np.arange(1), 0)
    found = module.copy_checksum(target.address, source.address, num_bytes)
    _check_equal("copy with checksum", target.blocks, source.blocks)
    if found != module.checksum(source.address, num_bytes):
        raise InvariantError("a checksum made while copying is not that of the bytes; it was not timed")

    def copy() -> None:
        module.copy_checksum(target.address, source.address, num_bytes)

    return _share(copy, copy_limits(target.address, source.address, num_bytes), scale)


def _share(call: Call, limits: list[Call], scale: Scale) -> Ratio:
    """Speed of a call over that of the better limit."""
    times = run_in_turn([call, *limits], scale.seconds)
    return times.ratio(times.fastest(range(1, 1 + len(limits))), 0)


def _random_arena(num_blocks: int, block_bytes: int) -> HostArena:
    arena = HostArena(num_blocks, block_bytes)
    pattern = np.random.default_rng(SEED).integers(0, 256, (4 << 20) + 1, np.uint8)
    flat = arena.blocks.reshape(-1)
    for first in range(0, len(flat), len(pattern)):
        part = flat[first : first + len(pattern)]
        part[:] = pattern[: len(part)]
    return arena


def _native_blocks(module: ModuleType, arena: HostArena) -> object:
    return module.Blocks(
        address=arena.address, num_blocks=arena.num_blocks, stride=arena.block_stride, bytes=arena.block_stride
    )


def _check_equal(what: str, found: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(found, expected):
        raise InvariantError(f"{what}: the bytes differ; it was not timed")
