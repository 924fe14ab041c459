"""``open_cache``: the only place that picks concrete classes and puts them together."""

import time
from functools import cached_property

import numpy as np

from kvpager.cache.fault import FaultLog
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.reclaim import Reclaimer, Watermarks
from kvpager.config import parse_size
from kvpager.errors import ConfigError
from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import EvictionPolicy
from kvpager.memory.arena import Arena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.prefix.index import PrefixIndex
from kvpager.tiers.device import DeviceTier, make_arena
from kvpager.tiers.row_access import RowAccess, Rows
from kvpager.types import Clock

_POLICIES = {"lru": LRU}


def open_cache(
    layout: KVLayout,
    capacity: int | str | None = None,
    *,
    num_blocks: int | None = None,
    max_capacity: int | str | None = None,
    device: str = "cpu",
    eviction: str = "lru",
    watermarks: Watermarks | None = None,
    prefix_cache: bool = True,
    match_inside_pages: bool = True,
    fingerprint: bytes = b"",
    rewind: int = 0,
    debug: bool = False,
    clock: Clock = time.perf_counter,
    arena: Arena | None = None,
) -> PagedCache:
    """A paged KV cache over a pool of ``capacity`` bytes (``"2 GiB"``), or of ``num_blocks`` blocks.

    ``max_capacity``: what the pool may later grow to (default: as large as it is). ``watermarks``: see
    cache/reclaim.py; by default there is no background reclaim, since dropping a page early gains nothing while there
    is no lower tier to write it to. ``match_inside_pages``: prefix hits may end inside a page. ``fingerprint``: names
    the model's weights, part of every content key. ``rewind``: tokens a sequence computed that ``truncate`` may take
    back after a sliding window has moved on. ``debug``: freed blocks are overwritten with NaN. ``arena`` replaces the
    device's memory.

    Raises ConfigError where the capacity holds no block, or for an unknown eviction policy.
    """
    if rewind < 0:
        raise ConfigError(f"rewind must be at least 0 tokens, not {rewind}")
    blocks = _num_blocks(layout, capacity, num_blocks)
    limit = blocks if max_capacity is None else parse_size(max_capacity) // layout.block_stride
    if arena is None:
        arena = make_arena(device, blocks, layout.block_stride, limit)
    elif (arena.num_blocks, arena.block_stride) != (blocks, layout.block_stride):
        raise ConfigError(
            f"the arena has {arena.num_blocks} blocks of {arena.block_stride} bytes, but {blocks} of "
            f"{layout.block_stride} are asked for; make it fit the layout"
        )
    pool = BlockPool(layout, arena, poison=debug)
    index = PrefixIndex(blocks, layout.num_groups, layout.page_size)
    policy = _policy(eviction, blocks)
    return PagedCache(
        layout=layout,
        pool=pool,
        index=index,
        policy=policy,
        reclaimer=Reclaimer(layout, pool, index, policy, watermarks or Watermarks()),
        faults=FaultLog(clock),
        access=_LazyRows(arena, layout),
        tiers=[DeviceTier(pool)],
        fingerprint=fingerprint,
        prefix_cache=prefix_cache,
        match_inside_pages=match_inside_pages,
        rewind=rewind,
    )


def _num_blocks(layout: KVLayout, capacity: int | str | None, num_blocks: int | None) -> int:
    if (capacity is None) == (num_blocks is None):
        raise ConfigError("give either capacity (bytes) or num_blocks")
    if num_blocks is None:
        assert capacity is not None
        num_blocks = parse_size(capacity) // layout.block_stride
        if num_blocks < 1:
            raise ConfigError(f"capacity {capacity!r} holds no block of {layout.block_stride} bytes; ask for more")
    if num_blocks < 1 or num_blocks >= 2**31:
        raise ConfigError(f"a pool has between 1 and 2^31-1 blocks, not {num_blocks}; choose larger pages")
    return num_blocks


def _policy(name: str, num_blocks: int) -> EvictionPolicy:
    if name not in _POLICIES:
        raise ConfigError(f"unknown eviction policy {name!r}; choose one of {', '.join(_POLICIES)}")
    return _POLICIES[name](num_blocks)


class _LazyRows:
    """Row access that loads torch with the first row moved by hand, so that pure bookkeeping never needs it."""

    def __init__(self, arena: Arena, layout: KVLayout) -> None:
        self._arena, self._layout = arena, layout

    @cached_property
    def _rows(self) -> RowAccess:
        from kvpager.tiers.rows import TorchRows

        return TorchRows(self._arena, self._layout)

    def check_rows(self, k: Rows, v: Rows) -> int:
        return self._rows.check_rows(k, v)

    def write(self, layer: int, blocks: np.ndarray, slots: np.ndarray, k: Rows, v: Rows) -> None:
        self._rows.write(layer, blocks, slots, k, v)

    def read(self, layers: list[int], blocks: list[np.ndarray], slots: np.ndarray) -> tuple[Rows, Rows]:
        return self._rows.read(layers, blocks, slots)
