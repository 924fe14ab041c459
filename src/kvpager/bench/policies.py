"""Eviction policies on recorded traces, as shares of the offline optimum, and how fast traces are replayed.

Shares are of the tokens hit in the second half of the requests of a sequential replay. Needs --traces DIR with the
traces of CASES (Mooncake's conversation, WEKA's coding sessions), which are public but not part of kvpager. --quick
leaves out the policies that have no target; they are replayed with their own code, which takes many minutes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from kvpager.bench.interleaved import run_in_turn
from kvpager.bench.report import Result, report
from kvpager.errors import ConfigError, InvariantError
from kvpager.eviction.make import POLICIES
from kvpager.simulator.readers import read_trace
from kvpager.simulator.replay import OPTIMUM, PATHS, replay, replay_levels
from kvpager.simulator.replay_cache import LevelPlan
from kvpager.simulator.report import ReplayResult, TraceFacts
from kvpager.simulator.trace import Trace

_LEARNING = "adaptive"
_NEVER_BELOW_LRU = 99.0  # per cent
_REFERENCES_A_SECOND = {"lru": 20e6, OPTIMUM: 20e6, _LEARNING: 2e6}  # at least
_CHECKED_REFERENCES = 400_000  # of a trace, before it is timed
_FEWER_DEMOTIONS = 85.0  # per cent of LRU's, at most


@dataclass(frozen=True, slots=True)
class Case:
    """A trace: the files that hold it, and per cent of blocks -> per cent of the optimum that is the target.

    ``targets_with_stops``: where the trace says why requests ended, and policies are told; ``targets`` is without.
    ``others``: the capacities at which policies without a target are replayed. ``timed``: the capacity for speeds.
    """

    name: str
    files: str
    targets: dict[float, float]
    targets_with_stops: dict[float, float]
    others: tuple[float, ...]
    timed: float


CASES = (
    Case("conversation", "*conversation_trace*", {1: 40, 2: 44, 5: 58, 10: 78, 20: 92}, {}, (1, 2, 5, 10, 20), 5),
    Case("weka", "*weka*", {0.25: 74, 0.5: 81, 1: 90.5}, {1: 92.5}, (0.5,), 0.5),
)
_TIERS, _TIERED_TOTAL = ((("device", 0.5), ("host", 2.0)), 43.0)  # of the conversation


def run(quick: bool = False, traces: str | None = None, cases: tuple[Case, ...] = CASES) -> dict[str, object]:
    if traces is None:
        raise ConfigError("this benchmark replays recorded traces; give the folder that holds them: --traces DIR")
    files = {case.name: _file_of(case, Path(traces)) for case in cases}  # before minutes of work
    results: list[Result] = []
    for case in cases:
        facts = TraceFacts(read_trace(files[case.name]))
        _check(facts.trace, case)
        results += _shares(facts, case, quick)
        if case.name == "conversation":
            results += _two_tiers(facts)
        results += _speeds(facts.trace, case, 2.0 if quick else 10.0)
    return report(
        "policies",
        results,
        f"traces {', '.join(file.name for file in files.values())}",
        checks=["replays over arrays hit the blocks that the policies' own code hits"],
    )


def _file_of(case: Case, folder: Path) -> Path:
    found = sorted(path for path in folder.glob(case.files) if path.is_file())
    if not found:
        raise ConfigError(f"{folder} has no file {case.files}, the trace {case.name}; put it there, packed or not")
    return found[0]


def _learning() -> list[str]:
    return [_LEARNING] if _LEARNING in POLICIES else []


# -- hits ----------------------------------------------------------------------------------------------------------


def _shares(facts: TraceFacts, case: Case, quick: bool) -> Iterable[Result]:
    trace = facts.trace
    has_stops = bool(trace.stop.any())
    told_nothing = TraceFacts(replace(trace, stop=np.zeros_like(trace.stop))) if has_stops else facts
    for percent, target in case.targets.items():
        capacity, name = trace.capacity(f"{percent:g}%"), f"{case.name}_{percent:g}"
        best, lru = replay(facts, OPTIMUM, capacity), replay(facts, "lru", capacity)
        yield Result(f"{name}_lru_of_min", _percent(lru, best), "percent")
        for policy in _learning():
            found = replay(told_nothing, policy, capacity)
            yield Result(f"{name}_{policy}_of_min", _percent(found, best), "percent", at_least=target)
            yield Result(f"{name}_{policy}_of_lru", _percent(found, lru), "percent", at_least=_NEVER_BELOW_LRU)
            if has_stops:
                told = replay(facts, policy, capacity)
                aim = case.targets_with_stops.get(percent)
                yield Result(f"{name}_{policy}_with_stops_of_min", _percent(told, best), "percent", at_least=aim)
                yield Result(
                    f"{name}_{policy}_with_stops_of_lru", _percent(told, lru), "percent", at_least=_NEVER_BELOW_LRU
                )
        for policy in () if quick or percent not in case.others else POLICIES:
            if policy not in PATHS and policy != _LEARNING:
                yield Result(f"{name}_{policy}_of_min", _percent(replay(facts, policy, capacity), best), "percent")


def _two_tiers(facts: TraceFacts) -> Iterable[Result]:
    """Exclusive tiers, against the optimum of one as large as both."""
    sizes = [(name, facts.trace.capacity(f"{percent:g}%")) for name, percent in _TIERS]
    best = replay(facts, OPTIMUM, sum(size for _, size in sizes))
    lru, *others = (
        replay_levels(facts, [LevelPlan(name, size, policy) for name, size in sizes])
        for policy in ("lru", *_learning())
    )
    yield Result("two_tier_conversation_lru_total_of_min", _percent(lru, best), "percent")
    for found in others:
        share = 100 * _demotions(found) / max(1, _demotions(lru))
        yield Result("two_tier_conversation_total_of_min", _percent(found, best), "percent", at_least=_TIERED_TOTAL)
        yield Result("two_tier_conversation_demotions_of_lru", share, "percent", at_most=_FEWER_DEMOTIONS)


def _percent(found: ReplayResult, of: ReplayResult) -> float:
    return 100 * found.second_half.tokens / max(1, of.second_half.tokens)


def _demotions(found: ReplayResult) -> int:
    return sum(level.stored for level in found.levels)


# -- speed ---------------------------------------------------------------------------------------------------------


def _check(trace: Trace, case: Case) -> None:
    """Raises InvariantError unless the ways over arrays find what the policies find, on the head of the trace."""
    facts = TraceFacts(_head(trace, _CHECKED_REFERENCES))
    capacity = facts.trace.capacity(f"{case.timed:g}%")
    for policy in (name for name in PATHS if name in POLICIES):
        fast, exact = replay(facts, policy, capacity), replay_levels(facts, [LevelPlan("device", capacity, policy)])
        if (fast.whole, fast.evictions) != (exact.whole, exact.evictions):
            raise InvariantError(f"{policy} hits other blocks of {trace.name} over arrays than with its own code")


def _head(trace: Trace, references: int) -> Trace:
    """The first requests of a trace, with at most so many references."""
    count = int(np.searchsorted(trace.first, references, side="right")) - 1
    pages = trace.pages[: trace.first[count]]
    per_request = ("times", "input_tokens", "output_tokens", "stop", "has_partial_tail")
    return replace(
        trace,
        first=trace.first[: count + 1],
        pages=pages,
        parent=trace.parent[: int(pages.max(initial=-1)) + 1],
        **{name: getattr(trace, name)[:count] for name in per_request},
    )


def _speeds(trace: Trace, case: Case, budget: float) -> Iterable[Result]:
    capacity = trace.capacity(f"{case.timed:g}%")
    known = [name for name in PATHS if name == OPTIMUM or name in POLICIES]
    names = [name for name in known if PATHS[name](trace, capacity) is not None]
    calls: list[Callable[..., object]] = [partial(PATHS[name], trace, capacity) for name in names]
    times = run_in_turn(calls, budget, least=3)
    for at, name in enumerate(names):
        yield Result(
            f"{name}_refs_per_second_{case.name}",
            trace.num_references / times.median(at),
            "references/s",
            at_least=_REFERENCES_A_SECOND.get(name),
        )
