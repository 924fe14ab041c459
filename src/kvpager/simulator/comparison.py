"""Policies side by side: one trace, some capacities, some policies; each against the optimum and against LRU.

The optimum is that of the sequential replay, of one level as large as all levels together. It bounds every other
figure from above wherever each request's pages all found room (``cut`` = 0). Knows nothing of how a table looks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpager.errors import ConfigError
from kvpager.eviction.make import POLICIES, make_policy
from kvpager.simulator.concurrent import LiveSet, Service, replay_concurrently
from kvpager.simulator.replay import OPTIMUM, PATHS, replay, replay_levels
from kvpager.simulator.replay_cache import LevelPlan
from kvpager.simulator.report import ReplayResult, TraceFacts
from kvpager.simulator.trace import Trace

Watch = Callable[[str, int], None]  # what is replayed now, and how many requests of it have been
_BASELINE = "lru"


@dataclass(frozen=True, slots=True)
class Row:
    """One replay. ``label``: the capacity as it was asked for; ``is_tiered``: it is that of tiers.

    Shares are of tokens, None where nothing was hit to compare with, or the baseline was not replayed; ``half`` is the
    second half of the requests.
    """

    label: str
    is_tiered: bool
    result: ReplayResult
    of_optimum: float | None
    half_of_optimum: float | None
    of_lru: float | None
    half_of_lru: float | None

    def as_dict(self) -> dict[str, object]:
        found = self.result.as_dict()
        return {
            "capacity_asked": self.label,
            "tiers": self.is_tiered,
            "hit_ratio": self.result.whole.ratio,
            "second_half_hit_ratio": self.result.second_half.ratio,
            "net_hit_ratio": self.result.net.ratio,
            "of_min": self.of_optimum,
            "second_half_of_min": self.half_of_optimum,
            "of_lru": self.of_lru,
            "second_half_of_lru": self.half_of_lru,
            **found,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """What to replay: capacities (as asked for, and in blocks), one set of tiers, and by which policies.

    ``exact_at``: the capacity that is replayed with the policies themselves even where a way over arrays exists, since
    only so it is known how old a page was when it went.
    """

    policies: tuple[str, ...]
    capacities: tuple[tuple[str, int], ...] = ()
    tiers: tuple[tuple[str, int], ...] = ()
    inclusive: bool = False
    service: Service | None = None
    exact_at: int | None = None

    def __post_init__(self) -> None:
        for name in self.policies:
            if name != OPTIMUM and name not in POLICIES:
                make_policy(name, 1, lambda: 0.0)  # says which there are
        if not self.capacities and not self.tiers:
            raise ConfigError("nothing to replay; give capacities, or tiers")


def compare(trace: Trace, asked: Asked, watch: Watch | None = None) -> list[Row]:
    """One row per capacity and policy, in the order asked for. Raises ConfigError for a trace without pages."""
    facts = TraceFacts(trace)
    live = None if asked.service is None else LiveSet.of(trace, asked.service)
    rows: list[Row] = []
    for label, capacity in asked.capacities:
        rows += _rows_of(facts, asked, label, (("device", capacity),), live, watch)
    if asked.tiers:
        label = ", ".join(f"{name} {capacity:,}" for name, capacity in asked.tiers)
        rows += _rows_of(facts, asked, label, asked.tiers, live, watch)
    return rows


def _rows_of(
    facts: TraceFacts,
    asked: Asked,
    label: str,
    levels: Sequence[tuple[str, int]],
    live: LiveSet | None,
    watch: Watch | None,
) -> list[Row]:
    total = sum(capacity for _, capacity in levels)
    optimum = replay(facts, OPTIMUM, total)
    results: dict[str, ReplayResult] = {}
    for policy in asked.policies:
        if watch is not None:
            watch(f"{policy} at {label}", 0)
        results[policy] = optimum if policy == OPTIMUM else _one(facts, asked, policy, label, levels, live, watch)
    baseline = results.get(_BASELINE)
    if baseline is None and asked.service is None and len(levels) == 1:
        baseline = replay(facts, _BASELINE, total)
    return [_row(label, len(levels) > 1, result, optimum, baseline) for result in results.values()]


def _one(
    facts: TraceFacts,
    asked: Asked,
    policy: str,
    label: str,
    levels: Sequence[tuple[str, int]],
    live: LiveSet | None,
    watch: Watch | None,
) -> ReplayResult:
    def progress(requests: int) -> None:
        if watch is not None:
            watch(f"{policy} at {label}", requests)

    plans = [LevelPlan(name, capacity, policy) for name, capacity in levels]
    if asked.service is not None:
        return replay_concurrently(facts, plans, asked.service, live=live, inclusive=asked.inclusive, progress=progress)
    if len(plans) == 1 and policy in PATHS and plans[0].capacity != asked.exact_at:
        return replay(facts, policy, plans[0].capacity)
    return replay_levels(facts, plans, inclusive=asked.inclusive, progress=progress)


def _row(
    label: str, is_tiered: bool, result: ReplayResult, optimum: ReplayResult, baseline: ReplayResult | None
) -> Row:
    def share(of: ReplayResult | None, *, half: bool = False) -> float | None:
        if of is None:
            return None
        mine, other = (result.second_half, of.second_half) if half else (result.whole, of.whole)
        return mine.tokens / other.tokens if other.tokens else None

    return Row(
        label,
        is_tiered,
        result,
        share(optimum),
        share(optimum, half=True),
        share(baseline),
        share(baseline, half=True),
    )
