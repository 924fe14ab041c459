"""Replays a trace with requests that overlap: the pages of each are held for as long as it would be served.

A request is served for input / ``prefill_speed`` + output * ``token_seconds``. Those that end when another one comes
have let go before it. Pages count as findable from the moment their request comes: one that asks for the same while
they are computed waits for them rather than computing them again. A request that finds no room for all its pages is
not made to wait, it runs with its first pages only in the cache, and is counted as ``cut``: waiting would move every
later request, and two capacities would no longer be asked the same.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from kvpager.errors import ConfigError
from kvpager.eviction.make import make_policy
from kvpager.simulator.replay import Progress, report_now_and_then
from kvpager.simulator.replay_cache import LevelPlan, MakePolicy, SimulatedCache
from kvpager.simulator.report import Concurrency, ReplayResult, TraceFacts, summarise
from kvpager.simulator.trace import Trace

_ENOUGH = 3  # live sets that a capacity should hold before its hits say something about reuse


@dataclass(frozen=True, slots=True)
class Service:
    """How long a request is served. ``prefill_speed``: prompt tokens a second. ``token_seconds``: for each answered."""

    prefill_speed: float = 10_000.0
    token_seconds: float = 0.03

    def __post_init__(self) -> None:
        if not self.prefill_speed > 0 or not self.token_seconds >= 0:
            raise ConfigError(
                f"the prefill speed must be above 0 tokens a second and the time of a token at least 0 seconds, not "
                f"{self.prefill_speed} and {self.token_seconds}"
            )

    def ends(self, trace: Trace) -> np.ndarray:
        """float64[requests]: when each is done, seconds."""
        ends: np.ndarray = (
            trace.times + trace.input_tokens / self.prefill_speed + trace.output_tokens * self.token_seconds
        )
        return ends


@dataclass(frozen=True, slots=True)
class LiveSet:
    """Blocks that requests under way hold when another one has come: what no policy can reclaim."""

    mean: float
    peak: int

    @classmethod
    def of(cls, trace: Trace, service: Service) -> "LiveSet":
        """With room for everything."""
        users = np.zeros(len(trace.parent), np.int32)
        ends, first, live, counts = service.ends(trace), trace.first.tolist(), 0, []
        under_way: list[tuple[float, int]] = []
        for request, now in enumerate(trace.times.tolist()):
            while under_way and under_way[0][0] <= now:
                done = heappop(under_way)[1]
                pages = trace.pages[first[done] : first[done + 1]]
                users[pages] -= 1
                live -= len(pages) - int(np.count_nonzero(users[pages]))
            pages = trace.pages[first[request] : first[request + 1]]
            live += len(pages) - int(np.count_nonzero(users[pages]))
            users[pages] += 1
            heappush(under_way, (ends.item(request), request))
            counts.append(live)
        return cls(float(np.mean(counts)) if counts else 0.0, max(counts, default=0))


def replay_concurrently(
    facts: TraceFacts,
    plans: list[LevelPlan],
    service: Service,
    *,
    live: LiveSet | None = None,
    inclusive: bool = False,
    make: MakePolicy = make_policy,
    progress: Progress | None = None,
) -> ReplayResult:
    """One run over all requests of a trace. ``live``: of this trace and service, where the caller has it already."""
    cache = SimulatedCache(facts.trace, plans, inclusive=inclusive, make=make)
    run_concurrently(cache, facts.trace, service, progress)
    live = live or LiveSet.of(facts.trace, service)
    tight = plans[0].capacity < _ENOUGH * live.mean
    return summarise(
        facts, plans, cache, inclusive=inclusive, concurrency=Concurrency(live.mean, live.peak, is_tight=tight)
    )


def run_concurrently(cache: SimulatedCache, trace: Trace, service: Service, progress: Progress | None = None) -> None:
    ends = service.ends(trace)
    under_way: list[tuple[float, int, np.ndarray]] = []  # no two have the same number, so pages are never compared
    for request, now in enumerate(trace.times.tolist()):
        _let_go_until(cache, under_way, now)
        heappush(under_way, (ends.item(request), request, cache.arrive(request, now)))
        report_now_and_then(progress, request)
    _let_go_until(cache, under_way, float("inf"))


def _let_go_until(cache: SimulatedCache, under_way: list[tuple[float, int, np.ndarray]], now: float) -> None:
    while under_way and under_way[0][0] <= now:
        end, request, pages = heappop(under_way)
        cache.depart(request, pages, end)
