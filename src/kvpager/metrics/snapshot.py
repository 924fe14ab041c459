"""All numbers of an engine at one moment, read between two steps on the engine's own thread."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.cache.statistics import CacheStatistics
from kvpager.engine.statistics import EngineStatistics

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``at``: seconds of the monotonic clock."""

    at: float
    engine: EngineStatistics
    cache: CacheStatistics


def take(engine: "Engine", at: float) -> Snapshot:
    """REQUIRES: the engine's thread, between two steps."""
    return Snapshot(at, engine.statistics(), engine.cache.statistics())
