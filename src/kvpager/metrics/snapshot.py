"""All numbers of an engine at one moment, read between two steps on the engine's own thread."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.cache.statistics import CacheStatistics
from kvpager.engine.statistics import EngineStatistics

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Setting:
    """What of the options is needed to judge the numbers. ``policy``: of eviction, by name; ``page_size``: tokens;
    ``num_groups``: blocks that a page takes."""

    policy: str = ""
    page_size: int = 1
    num_groups: int = 1
    max_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``at``: seconds of ``perf_counter``."""

    at: float
    engine: EngineStatistics
    cache: CacheStatistics
    setting: Setting = Setting()


def take(engine: "Engine", at: float) -> Snapshot:
    """REQUIRES: the engine's thread, between two steps."""
    options = engine.options
    setting = Setting(options.eviction, engine.layout.page_size, engine.layout.num_groups, options.max_waiting)
    return Snapshot(at, engine.statistics(), engine.cache.statistics(), setting)
