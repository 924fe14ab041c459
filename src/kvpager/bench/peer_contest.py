"""Runs workloads on engines in turn, round by round. Knows no figures.

Each workload decides by itself which engines it can afford. A peer is stopped there only where that decides nothing:
another one has run the workload to its end in less time than this one has already taken (the runner's own probe,
peer_runners/serving_loop.py). So the fastest is always measured to its end, and with one peer alone nobody is stopped
before ``_FIRST_LIMIT``. What a stopped one did until then is kept, and it takes part in the next workload all the same:
what is slow in one may be the fastest in another. An engine that fails is told of, and runs no more.
"""

import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvpager.bench.peer_process import Limit, Part, PeerFailed, PeerTooSlow, Run
from kvpager.bench.peer_scale import AT_ONCE, Scale
from kvpager.bench.workloads import Workload

BEHIND = 1.25  # times the fastest peer's seconds: who needs more in the first round is not measured again
_LIMIT = 2.0  # times them: a peer may need that in the workload, and ``_LEAST_LIMIT`` seconds at any rate
_LEAST_LIMIT = 60.0
_FIRST_LIMIT = 480.0  # of a peer beside which none has run the workload to its end


class Runs(Protocol):
    def run(self, workload: Workload, limit: Limit | None = None) -> Run: ...


Runners = dict[str, list[Run]]
"""Of one workload, by engine: its runs to the end, round by round."""
Rounds = dict[str, Runners]


class Told(Protocol):
    """Whoever wants to know what happens, as it happens."""

    def skip(self, peer: str, workload: str, reason: str) -> None:
        """It is left out of a workload; none: of all that follow."""

    def stopped(self, peer: str, workload: str, part: Part, rounds: int) -> None:
        """It was stopped in the middle, after so many ``rounds`` to the end."""

    def done(self, workload: str, runs: Runners) -> None:
        """All that run it have run it."""


@dataclass(frozen=True, slots=True)
class Field:
    """Who takes part. ``rivals``: the peers of which the fastest counts. ``only``: engines that are asked for few of
    the workloads."""

    ours: str
    rivals: Collection[str]
    only: Mapping[str, Collection[str]]

    def is_for(self, engine: str, workload: str) -> bool:
        return engine not in self.only or workload in self.only[engine]

    def fastest(self, seconds: Mapping[str, float], without: str = "") -> float | None:
        """Of the rivals but one, where any of them is there."""
        return min((each for name, each in seconds.items() if name in self.rivals and name != without), default=None)

    def limit(self, runs: Mapping[str, list[Run]], engine: str) -> Limit | None:
        """Of ``engine``, after what the others have needed in this workload. Ours has none."""
        if engine == self.ours:
            return None
        fastest = self.fastest({name: min(run.seconds for run in each) for name, each in runs.items() if each}, engine)
        if fastest is None:
            return Limit(_FIRST_LIMIT, _FIRST_LIMIT)
        return Limit(fastest, max(_LEAST_LIMIT, _LIMIT * fastest))

    def contenders(self, runs: Mapping[str, list[Run]]) -> list[str]:
        """We, and the peers that are not far behind the fastest of the rivals."""
        seconds = {name: statistics.median(run.seconds for run in each) for name, each in runs.items() if each}
        fastest = self.fastest(seconds)
        return [name for name, each in seconds.items() if name == self.ours or each <= BEHIND * (fastest or each)]


def contest(engines: dict[str, Runs], field: Field, scale: Scale, told: Told) -> Rounds:
    """An engine that fails is taken out of ``engines``."""
    found: Rounds = {}
    for name in scale.shares:
        if name == AT_ONCE:
            continue  # that is counted in processes of its own
        fit = []
        for engine in engines:
            if field.is_for(engine, name):
                fit.append(engine)
            else:
                told.skip(engine, name, "it is not made for such requests (docs/peers.md)")
        found[name] = _one_workload(name, fit, engines, field, scale, told)
        told.done(name, found[name])
    return found


def _one_workload(
    name: str, fit: list[str], engines: dict[str, Runs], field: Field, scale: Scale, told: Told
) -> Runners:
    runs: Runners = {engine: [] for engine in fit}
    running, begin = fit, 0.0
    for number in range(scale.rounds):
        if number == 1:
            begin = time.perf_counter()
        if not scale.has_time(number, time.perf_counter() - begin):
            break
        load = scale.load(name, number)
        out = set()
        for engine in reversed(running) if number % 2 else running:
            try:
                runs[engine].append(engines[engine].run(load, field.limit(runs, engine)))
            except PeerTooSlow as failure:
                told.stopped(engine, name, failure.part, len(runs[engine]))
                out.add(engine)
            except PeerFailed as failure:
                told.skip(engine, "", str(failure))
                del engines[engine], runs[engine]
        running = field.contenders({engine: runs[engine] for engine in running if engine in runs and engine not in out})
    return {engine: each for engine, each in runs.items() if each}
