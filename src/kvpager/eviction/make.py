"""Policies by name."""

from collections.abc import Callable

from kvpager.errors import ConfigError
from kvpager.eviction.adaptive import make_adaptive
from kvpager.eviction.arc import ARC
from kvpager.eviction.fifo import FIFO
from kvpager.eviction.gdsf import GDSF
from kvpager.eviction.lfu import LFU
from kvpager.eviction.lru import LRU
from kvpager.eviction.lru_k import LRUK
from kvpager.eviction.policy import EvictionPolicy
from kvpager.eviction.priority import Priority
from kvpager.eviction.s3fifo import S3FIFO
from kvpager.eviction.sieve import SIEVE
from kvpager.eviction.slru import SLRU
from kvpager.eviction.w_tinylfu import WTinyLFU
from kvpager.eviction.window import Window
from kvpager.types import Clock

_MAKERS: dict[str, Callable[[int, Clock], EvictionPolicy]] = {
    "fifo": lambda num_blocks, clock: FIFO(num_blocks),
    "lru": lambda num_blocks, clock: LRU(num_blocks),
    "lfu": lambda num_blocks, clock: LFU(num_blocks),
    "lru_k": lambda num_blocks, clock: LRUK(num_blocks),
    "slru": lambda num_blocks, clock: SLRU(num_blocks),
    "arc": lambda num_blocks, clock: ARC(num_blocks),
    "s3fifo": lambda num_blocks, clock: S3FIFO(num_blocks),
    "sieve": lambda num_blocks, clock: SIEVE(num_blocks),
    "w_tinylfu": lambda num_blocks, clock: WTinyLFU(num_blocks),
    "gdsf": lambda num_blocks, clock: GDSF(num_blocks),
    "window": Window,
    "priority": lambda num_blocks, clock: Priority(num_blocks),
    "adaptive": make_adaptive,
}
POLICIES = tuple(_MAKERS)


def make_policy(name: str, num_blocks: int, clock: Clock) -> EvictionPolicy:
    """A policy over blocks 0 .. num_blocks-1. ``clock``: seconds. Raises ConfigError for an unknown name."""
    if name not in _MAKERS:
        raise ConfigError(f"unknown eviction policy {name!r}; choose one of {', '.join(POLICIES)}")
    return _MAKERS[name](num_blocks, clock)
