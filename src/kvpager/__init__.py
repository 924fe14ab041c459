"""kvpager: virtual memory for LLM inference.

A sequence's KV cache is a run of virtual pages; a page table maps them to physical blocks of a preallocated pool.
Names are loaded when they are first used, so that ``import kvpager`` is light and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from kvpager.errors import (
    ConfigError,
    InvariantError,
    KVPagerError,
    MissingExtra,
    ModelError,
    OutOfBlocks,
    PagesLost,
    QueueFull,
    RequestError,
    TierError,
    TierFull,
    UnsupportedModel,
    WrongContent,
)
from kvpager.version import __version__

if TYPE_CHECKING:
    from kvpager import attention
    from kvpager.assemble import open_cache
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.reclaim import Watermarks
    from kvpager.cache.retention_terms import Retained, Retention, Verdict
    from kvpager.cache.sequence import Sequence
    from kvpager.config.attend import HeavyHitters, Selective, SinksAndWindow, SnapKV
    from kvpager.config.tiers import DiskTier, HostTier, RemoteTier
    from kvpager.memory.layout import KVLayout, LayerSpec
    from kvpager.prefix.hashing import Media, Scope

_HOME = {
    "DiskTier": "kvpager.config.tiers",
    "HeavyHitters": "kvpager.config.attend",
    "HostTier": "kvpager.config.tiers",
    "KVLayout": "kvpager.memory.layout",
    "LayerSpec": "kvpager.memory.layout",
    "Media": "kvpager.prefix.hashing",
    "PagedCache": "kvpager.cache.paged_cache",
    "RemoteTier": "kvpager.config.tiers",
    "Retained": "kvpager.cache.retention_terms",
    "Retention": "kvpager.cache.retention_terms",
    "Scope": "kvpager.prefix.hashing",
    "Selective": "kvpager.config.attend",
    "Sequence": "kvpager.cache.sequence",
    "SinksAndWindow": "kvpager.config.attend",
    "SnapKV": "kvpager.config.attend",
    "Verdict": "kvpager.cache.retention_terms",
    "Watermarks": "kvpager.cache.reclaim",
    "open_cache": "kvpager.assemble",
}

__all__ = [
    "ConfigError",
    "DiskTier",
    "HeavyHitters",
    "HostTier",
    "InvariantError",
    "KVLayout",
    "KVPagerError",
    "LayerSpec",
    "Media",
    "MissingExtra",
    "ModelError",
    "OutOfBlocks",
    "PagedCache",
    "PagesLost",
    "QueueFull",
    "RemoteTier",
    "RequestError",
    "Retained",
    "Retention",
    "Scope",
    "Selective",
    "Sequence",
    "SinksAndWindow",
    "SnapKV",
    "TierError",
    "TierFull",
    "UnsupportedModel",
    "Verdict",
    "Watermarks",
    "WrongContent",
    "__version__",
    "attention",
    "open_cache",
]


def __getattr__(name: str) -> object:
    if name == "attention":
        return import_module("kvpager.attention")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kvpager' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
