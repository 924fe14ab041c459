"""``open_cache``: the only place that picks concrete classes and puts them together."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from kvpager.cache.evictable import Evictable
from kvpager.cache.fault import FaultLog
from kvpager.cache.lower_pages import LowerPages
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.reclaim import Reclaimer, Watermarks
from kvpager.cache.retention import Retainer
from kvpager.cache.runs import Runs
from kvpager.config import parse_size, resolve_host_capacity
from kvpager.config.tiers import DiskTier, HostTier, TierOptions, check_exclusive, check_order
from kvpager.errors import ConfigError
from kvpager.eviction.make import make_policy
from kvpager.eviction.policy import EvictionPolicy, JudgingPolicy
from kvpager.memory.arena import Arena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout
from kvpager.prefix.hashing import tier_identity
from kvpager.prefix.index import PrefixIndex
from kvpager.tiers.codec import PageCodec
from kvpager.tiers.device import DeviceTier, make_arena, pin_memory, unpin_memory
from kvpager.tiers.device_pages import DevicePages
from kvpager.tiers.disk.open import open_disk, open_sessions
from kvpager.tiers.host import HostStore, Pinning
from kvpager.tiers.migration import Migration, WriteBack
from kvpager.tiers.mover import Mover, ThreadMover
from kvpager.tiers.quantized_pages import QuantizedPages
from kvpager.tiers.remote.open import open_remote
from kvpager.tiers.row_access import RowAccess, Rows
from kvpager.tiers.staging import Window
from kvpager.tiers.staging_window import StagingWindow
from kvpager.tiers.tier import LowerTier
from kvpager.types import Clock

_SEGMENT_TOKENS = 2048  # attention takes so many positions at once
_PAGE = 4096  # bytes: memory is taken in these


@dataclass(frozen=True, slots=True)
class _Above:
    """What a tier has to know of the cache above it. ``pool_bytes``: memory of the host that the pool will take.
    ``make_policy``: over so many slots."""

    page_bytes: int
    pool_bytes: int
    identity: bytes
    pinning: Pinning | None
    make_policy: Callable[[int], EvictionPolicy]
    clock: Clock


def open_cache(
    layout: KVLayout,
    capacity: int | str | None = None,
    *,
    num_blocks: int | None = None,
    max_capacity: int | str | None = None,
    device: str = "cpu",
    tiers: Sequence[TierOptions] = (),
    write_back: str = "through",
    load_deadline: float | None = None,
    tier_dtype: str | None = None,
    max_moving: int | str = "256 MiB",
    window: int | str | None = None,
    eviction: str = "lru",
    watermarks: Watermarks | None = None,
    contiguous: bool = False,
    prefix_cache: bool = True,
    match_inside_pages: bool = True,
    fingerprint: bytes = b"",
    rewind: int = 0,
    pinned_share: float = 0.5,
    debug: bool = False,
    clock: Clock = time.perf_counter,
    arena: Arena | None = None,
    mover: Mover | None = None,
    nonce: bytes | None = None,
) -> PagedCache:
    """A paged KV cache over a pool of ``capacity`` bytes (``"2 GiB"``), or of ``num_blocks`` blocks.

    ``tiers``: where pages go below the device, the nearest first (HostTier, DiskTier, RemoteTier), under the same
    policy of ``eviction``. ``write_back``: when they are copied down, ``through`` (as soon as they are full), ``back``
    (before they are dropped) or ``selective`` (when they are used again). ``load_deadline``: seconds until a page that
    does not come is computed instead. ``tier_dtype``: int8 or float8_e4m3 keeps pages below the device in that format,
    which is lossy (default: as they are). ``max_moving``: bytes under way in each direction, and at most an eighth of
    the pool. ``window``: memory through which steps read pages of running sequences that lie on disk or in a remote
    store ("64 MiB"); by default no sequence can have any there. ``mover`` runs the transfers (default: threads).
    ``nonce``: names pages that nobody else may find, in tiers that others share; random by default.

    ``contiguous``: the baseline without paging, see cache/runs.py; ``cache.runs.reserve(seq.row, blocks)`` before the
    first step of each sequence. It has no prefix cache and no tiers.

    ``max_capacity``: what the pool may later grow to (default: as large as it is). ``watermarks``: see
    cache/reclaim.py; by default there is no background reclaim, since dropping a page early gains nothing while there
    is no lower tier to write it to. ``match_inside_pages``: prefix hits may end inside a page. ``fingerprint``: names
    the model's weights, part of every content key and of what tiers write beside each page. ``rewind``: tokens a
    sequence computed that ``truncate`` may take back after a sliding window has moved on. ``pinned_share``: of
    the pool, that retentions may pin at most. ``debug``: freed blocks are
    overwritten with NaN. ``arena`` replaces the device's memory.

    Raises ConfigError where the capacity holds no block, for an unknown eviction policy, or for a tier that can't be
    opened; MissingExtra where a tier needs a package that is not installed.
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
    evictable = Evictable(layout, pool, index, make_policy(eviction, blocks, clock))
    cache = PagedCache(
        layout=layout,
        pool=pool,
        index=index,
        evictable=evictable,
        reclaimer=Reclaimer(pool, index, evictable, watermarks or Watermarks()),
        faults=FaultLog(clock),
        access=_LazyRows(arena, layout),
        tiers=[DeviceTier(pool)],
        fingerprint=fingerprint,
        prefix_cache=prefix_cache,
        match_inside_pages=match_inside_pages,
        rewind=rewind,
        runs=Runs(pool) if contiguous else None,
    )
    if window is not None and not tiers:
        raise ConfigError("a window reads pages that lie below the device: give tiers= too, or leave it out")
    if contiguous and (tiers or prefix_cache or len(layout.groups) > 1 or layout.groups[0].window is not None):
        raise ConfigError(
            "contiguous allocation shares and moves no pages, and gives none back early: it has no prefix cache, "
            "no tiers and no sliding windows"
        )
    cache.retention = Retainer(cache, clock, partial(make_policy, clock=clock), pinned_share)
    if tiers:
        if not fingerprint and not all(isinstance(tier, HostTier) for tier in tiers):
            raise ConfigError(
                "a tier that outlives this process may keep KV of other models too: give fingerprint=, bytes that "
                "name the model's weights, so that they are never mixed up"
            )
        tiers, when = check_order(tiers), _write_back(write_back)
        check_exclusive(tiers, write_back)
        codec = None if tier_dtype is None else QuantizedPages(layout, tier_dtype)
        above = _Above(
            page_bytes=layout.block_stride if codec is None else codec.page_bytes,
            pool_bytes=blocks * layout.block_stride if device == "cpu" else 0,
            identity=tier_identity(fingerprint, (layout if codec is None else codec.layout).describe()),
            pinning=Pinning(pin_memory, unpin_memory) if device.startswith("cuda") else None,
            make_policy=lambda num_slots: policy_below(evictable.policy, num_slots, clock),
            clock=clock,
        )
        most = _moving_bytes(max_moving, blocks, above.page_bytes)
        stores = _open_tiers(tiers, above)
        with _closing_if_it_fails(stores):
            staging = _open_window(window, layout, stores, load_deadline, debug)
        put_below(
            cache,
            stores,
            mover or ThreadMover(_lanes(stores)),
            clock,
            when,
            most,
            load_deadline,
            codec,
            nonce=nonce,
            window=staging,
        )
        cache.sessions = next((open_sessions(each) for each in tiers if isinstance(each, DiskTier)), None)
    return cache


def policy_below(above: EvictionPolicy, num_slots: int, clock: Clock) -> EvictionPolicy:
    """What orders a tier below a device whose policy is ``above``: the same, judging by what that has learned."""
    if isinstance(above, JudgingPolicy):
        return above.below(num_slots)
    return make_policy(above.name, num_slots, clock)


def put_below(
    cache: PagedCache,
    stores: Sequence[LowerTier],
    mover: Mover,
    clock: Clock,
    write_back: WriteBack,
    max_moving_bytes: int,
    load_deadline: float | None,
    codec: PageCodec | None = None,
    *,
    nonce: bytes | None = None,
    window: Window | None = None,
) -> None:
    """Ties opened tiers to the cache above them. ``nonce``: see cache/page_copies.py; by default it is random."""
    lower: LowerPages

    def taken(blocks: np.ndarray) -> None:
        lower.taken(blocks)

    def settled(blocks: np.ndarray, cached: np.ndarray) -> None:
        lower.settled(blocks, cached)

    migration = Migration(
        DevicePages(cache.pool, taken, settled, codec),
        stores,
        mover,
        clock,
        write_back=write_back,
        max_moving_bytes=max_moving_bytes,
        load_deadline=load_deadline,
    )
    cache.lower = lower = LowerPages(cache, migration)
    cache._reclaimer.below = lower
    cache.paging.use_tiers(secrets.token_bytes(16) if nonce is None else nonce, window, _why_not_in_place(cache, codec))


def _why_not_in_place(cache: PagedCache, codec: PageCodec | None) -> str:
    """Why pages can't be read while they lie in the tiers, as far as the whole cache goes."""
    if cache.layout.is_quantized:
        return f"the KV dtype is {cache.layout.dtype}, whose scales lie apart; open the cache with a float dtype"
    if codec is not None:
        return f"the tiers keep pages as {codec.name}; open the cache without tier_dtype"
    return ""


def _open_window(
    window: int | str | None, layout: KVLayout, stores: Sequence[LowerTier], deadline: float | None, debug: bool
) -> StagingWindow | None:
    """Raises ConfigError where it holds no two segments of a layer: one is attended to while the next one comes."""
    if window is None:
        return None
    size, alignment = parse_size(window), max(store.part_alignment for store in stores)
    pages = layout.num_pages(_SEGMENT_TOKENS)
    widest = 0
    for group in layout.groups:
        part = group.bytes_per_token(layout.item_bytes) // len(group.layers) * layout.page_size
        lead = max(at * part % alignment for at in range(len(group.layers)))
        widest = max(widest, -(-(lead + part) // alignment) * alignment)
    need = 2 * -(-pages * widest // _PAGE) * _PAGE
    if size < need:
        raise ConfigError(
            f"a window of {size:,} bytes is too small: one layer of {_SEGMENT_TOKENS:,} tokens takes "
            f"{pages * widest:,} bytes, and two of them have to fit; give at least {need:,}"
        )
    return StagingWindow(size, stores, deadline=deadline, debug=debug)


def _lanes(stores: list[LowerTier]) -> dict[str, int]:
    loads = {f"{store.name} load": store.load_threads for store in stores}
    return loads | {f"{store.name} store": store.store_threads for store in stores}


def _open_tiers(tiers: Sequence[TierOptions], above: _Above) -> list[LowerTier]:
    opened: list[LowerTier] = []
    with _closing_if_it_fails(opened):
        for options in tiers:
            opened.append(_open_tier(options, above))
    return opened


@contextmanager
def _closing_if_it_fails(stores: Sequence[LowerTier]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for store in stores:
            store.close()
        raise


def _open_tier(options: TierOptions, above: _Above) -> LowerTier:
    if isinstance(options, HostTier):
        page_bytes = above.page_bytes
        slots = options.pages or HostStore.slots_in(
            resolve_host_capacity(options.capacity, above.pool_bytes), page_bytes
        )
        return HostStore(page_bytes, slots, above.make_policy(slots), above.pinning, exclusive=options.exclusive)
    if isinstance(options, DiskTier):
        return open_disk(options, above.page_bytes, above.identity, above.make_policy, above.clock)
    return open_remote(options, above.page_bytes, above.identity, above.clock)


def _moving_bytes(limit: int | str, num_blocks: int, page_bytes: int) -> int:
    """At most an eighth of the pool, since what moves can't be reclaimed."""
    return min(parse_size(limit), max(1, num_blocks // 8) * page_bytes)


def _write_back(name: str) -> WriteBack:
    names = [each.value for each in WriteBack]
    if name not in names:
        raise ConfigError(f"unknown write_back {name!r}; choose one of {', '.join(names)}")
    return WriteBack(name)


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
