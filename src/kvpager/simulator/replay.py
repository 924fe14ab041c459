"""Replays a trace under a policy of the product: sequentially, each request done before the next one comes.

A request hits its longest cached prefix; for each other page that finds no free block a victim leaves; then its pages
come in, and all of them are let go, the last one first. A request longer than the capacity keeps its first pages only.
"""

from collections.abc import Callable

from kvpager.eviction.make import make_policy
from kvpager.simulator.adaptive_path import replay_adaptive
from kvpager.simulator.lru_path import replay_lru
from kvpager.simulator.min_path import replay_min
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.replay_cache import LevelPlan, MakePolicy, SimulatedCache
from kvpager.simulator.report import ReplayResult, TraceFacts, summarise, summarise_path
from kvpager.simulator.trace import Trace

OPTIMUM = "min"  # knows the future, so it is no policy of the product
PATHS: dict[str, Callable[[Trace, int], ReplayedPath | None]] = {  # over arrays; None: there is no such way here
    "lru": replay_lru,
    "adaptive": replay_adaptive,
    OPTIMUM: replay_min,
}

Progress = Callable[[int], None]  # told how many requests have been replayed, now and then
_REPORT_EVERY = 256  # requests


def replay(facts: TraceFacts, policy: str, capacity: int, progress: Progress | None = None) -> ReplayResult:
    """One policy at one capacity in blocks; over arrays where there is such a way, which finds the same."""
    path = PATHS[policy](facts.trace, capacity) if policy in PATHS else None
    if path is not None:
        return summarise_path(facts, path)
    return replay_levels(facts, [LevelPlan("device", capacity, policy)], progress=progress)


def replay_levels(
    facts: TraceFacts,
    plans: list[LevelPlan],
    *,
    inclusive: bool = False,
    make: MakePolicy = make_policy,
    progress: Progress | None = None,
) -> ReplayResult:
    """One run with the policies themselves. ``plans``: the device, and the tiers below it if there are any."""
    cache = SimulatedCache(facts.trace, plans, inclusive=inclusive, make=make)
    run(cache, facts.trace, progress)
    return summarise(facts, plans, cache, inclusive=inclusive)


def run(cache: SimulatedCache, trace: Trace, progress: Progress | None = None) -> None:
    for request, now in enumerate(trace.times.tolist()):
        cache.depart(request, cache.arrive(request, now), now)
        report_now_and_then(progress, request)


def report_now_and_then(progress: Progress | None, request: int) -> None:
    if progress is not None and request % _REPORT_EVERY == 0:
        progress(request)
