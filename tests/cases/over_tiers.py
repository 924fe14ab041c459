"""Caches over real tiers, for the open cases that ask the same of every tier."""

from pathlib import Path

from kvpager import DiskTier, HostTier, KVLayout, PagedCache, open_cache
from kvpager.types import TierKind
from tests.stamp import T

TIERS = {"host": (TierKind.HOST,), "disk": (TierKind.DISK,), "host and disk": (TierKind.HOST, TierKind.DISK)}
P = T(1, 48)


def layout(dtype: str = "float32") -> KVLayout:
    return KVLayout(layers=2, kv_heads=2, head_dim=8, dtype=dtype, page_size=16)


def opened(folder: Path, dtype: str = "float32", tiers: tuple[TierKind, ...] = (TierKind.DISK,), **more) -> PagedCache:
    """The disk tier lies in ``folder`` / "kv"."""
    options = {TierKind.HOST: HostTier(pages=64), TierKind.DISK: DiskTier(folder / "kv", "16 MiB")}
    more = {"num_blocks": 32, "fingerprint": b"one", **more}
    return open_cache(layout(dtype), tiers=[options[kind] for kind in tiers], **more)


def drop_all(cache: PagedCache) -> None:
    """What was published is in the tiers, and the device has nothing any more."""
    assert cache.lower is not None
    assert cache.lower.settle(60)
    cache._reclaimer.make_free(cache.pool.num_blocks)
    assert cache.index.num_entries == 0
