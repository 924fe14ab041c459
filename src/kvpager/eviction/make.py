"""Policies by name."""

from collections.abc import Callable

from kvpager.errors import ConfigError
from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import EvictionPolicy
from kvpager.types import Clock

_MAKERS: dict[str, Callable[[int, Clock], EvictionPolicy]] = {"lru": lambda num_blocks, clock: LRU(num_blocks)}
POLICIES = tuple(_MAKERS)


def make_policy(name: str, num_blocks: int, clock: Clock) -> EvictionPolicy:
    """A policy over blocks 0 .. num_blocks-1. ``clock``: seconds. Raises ConfigError for an unknown name."""
    if name not in _MAKERS:
        raise ConfigError(f"unknown eviction policy {name!r}; choose one of {', '.join(POLICIES)}")
    return _MAKERS[name](num_blocks, clock)
