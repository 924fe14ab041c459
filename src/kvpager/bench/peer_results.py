"""From the runs of all engines to the figures of the benchmark. Measures nothing.

Ratios are against the fastest peer whose weights have as many bits as ours; a peer with others is shown, and no rival.
The fastest is one that has run the workload to its end. Only where none has, it may be one that was stopped after
``ENOUGH`` of the tokens, at its pace until then; the checks of the report say so (``without_a_whole_run``).
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvpager.bench.peer_catalog import OURS
from kvpager.bench.peer_contest import Rounds
from kvpager.bench.peer_figures import Agreement, best_of, latency, ratio, tokens_per_second
from kvpager.bench.peer_process import Part, Run
from kvpager.bench.peer_scale import PREFIX_HIT
from kvpager.bench.report import Result

AT_LEAST = {
    "1x128": 1.0,
    "32x128": 1.0,
    "128x128": 1.0,
    "16x2048": 1.0,
    "shared_prefix": 1.3,
    "conversations": 1.3,
    "azure": None,
}
TTFT_AT_MOST = 0.8
MEMORY_AT_MOST = 1.1
ENOUGH = 0.5
Parts = Mapping[str, Mapping[str, Part]]
"""By workload and engine, of those that were stopped in it."""


def results(
    rounds: Rounds,
    parts: Parts,
    about: Mapping[str, Mapping[str, Any]],
    agreed: Mapping[str, Agreement],
    at_once: Mapping[str, int],
    room_bytes: int,
) -> list[Result]:
    return [
        *_ratios(rounds, parts, rivals(about)),
        *_own(rounds),
        *_of_parts(parts),
        *(Result(f"peer_greedy_agreement/{name}", each.share, "share") for name, each in agreed.items()),
        *(
            Result(f"peer_requests_in_{room_bytes >> 20}_mib/{name}", float(count), "requests")
            for name, count in at_once.items()
        ),
    ]


def rivals(about: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Peers with as many bits as ours."""
    return [name for name, each in about.items() if name != OURS and each["bits"] == about[OURS]["bits"]]


def first_hit(run: Run) -> float:
    """The median time to first token, seconds, of those that find what the first request has left."""
    return statistics.median(answer.times[0] - answer.due for answer in run.answers[1:])


def without_a_whole_run(rounds: Rounds, parts: Parts, peers: list[str]) -> Iterator[str]:
    """A line for each workload that none of the rivals has run to its end, though one began: what is compared with."""
    for name, runs in rounds.items():
        stopped = {peer: part for peer, part in parts.get(name, {}).items() if peer in peers}
        if stopped and not any(runs.get(peer) for peer in peers):
            best = None if name == PREFIX_HIT else _best_part(stopped, peers)
            if best is None:
                yield f"{name}: no ratio, for no peer has run {ENOUGH:.0%} of its tokens"
            else:
                yield f"{name}: no peer has run all of it; the ratio is against {best} at its pace over {stopped[best]}"


def _best_part(parts: Mapping[str, Part], peers: list[str]) -> str | None:
    enough = [name for name in peers if name in parts and parts[name].share >= ENOUGH]
    return min(enough, key=lambda name: parts[name].whole_seconds, default=None)


def _ratios(rounds: Rounds, parts: Parts, peers: list[str]) -> Iterator[Result]:
    for name, runs in rounds.items():
        if name == PREFIX_HIT:
            found = _against_best("ttft_prefix_hit_vs_best", runs, peers, first_hit, at_most=TTFT_AT_MOST)
        else:
            whole = list(_against_best(f"peer_{name}_vs_best", runs, peers, _seconds, at_least=AT_LEAST[name]))
            found = iter(whole) if whole else _against_best_part(name, runs.get(OURS), parts.get(name, {}), peers)
        yield from found
    memory = [over for peer in peers if (over := _memory_over(rounds, peer)) is not None]
    if memory:
        matched, all_rounds = zip(*memory, strict=True)
        yield Result("peak_memory_vs_leanest", max(matched), "ratio", at_most=MEMORY_AT_MOST)
        yield Result("peak_memory_all_rounds_vs_leanest", max(all_rounds), "ratio")


def _memory_over(rounds: Rounds, peer: str) -> tuple[float, float] | None:
    """Our most memory over a peer's, in the workloads that both have run to their end: in the rounds that both have
    run, and in all that either has. None: there is no such workload."""
    common = {name: runs for name, runs in rounds.items() if runs.get(OURS) and runs.get(peer)}
    if not common:
        return None
    matched = {}
    for name, runs in common.items():
        count = min(len(runs[OURS]), len(runs[peer]))
        matched[name] = {engine: runs[engine][:count] for engine in (OURS, peer)}
    same, every = peak_bytes(matched), peak_bytes(common)
    return same[OURS] / same[peer], every[OURS] / every[peer]


def _against_best(
    name: str,
    runs: Mapping[str, list[Run]],
    peers: list[str],
    measure: Callable[[Run], float],
    at_least: float | None = None,
    at_most: float | None = None,
) -> Iterator[Result]:
    """Less is better in ``measure``. With ``at_most`` the ratio is ours over the best peer's, else the other way."""
    found = {engine: [measure(run) for run in each] for engine, each in runs.items()}
    best = best_of(found, peers)
    if best is None or not found.get(OURS):
        return
    if at_most is not None:
        yield ratio(name, found[OURS], found[best], at_most=at_most)
    else:
        yield ratio(name, found[best], found[OURS], at_least=at_least)


def _against_best_part(
    name: str, ours: list[Run] | None, parts: Mapping[str, Part], peers: list[str]
) -> Iterator[Result]:
    best = _best_part(parts, peers)
    if best is not None and ours:
        seconds = [parts[best].whole_seconds]
        yield ratio(f"peer_{name}_vs_best", seconds, [run.seconds for run in ours], at_least=AT_LEAST[name])


def _of_parts(parts: Parts) -> Iterator[Result]:
    for name, each in parts.items():
        for engine, part in each.items():
            yield Result(f"peer_{name}_stopped_at/{engine}", part.share, "share")
            if name != PREFIX_HIT:
                rate = part.tokens_per_second
                yield Result(f"peer_{name}_tokens_per_second_until_stopped/{engine}", rate, "tokens/s")


def _seconds(run: Run) -> float:
    return run.seconds


def peak_bytes(rounds: Rounds) -> dict[str, int]:
    """The most of any run, by engine."""
    found: dict[str, int] = {}
    for runs in rounds.values():
        for engine, each in runs.items():
            for run in each:
                found[engine] = max(found.get(engine, 0), run.peak_bytes)
    return found


def _own(rounds: Rounds) -> Iterator[Result]:
    """Each engine's own figures."""
    for name, runs in rounds.items():
        for engine, each in runs.items():
            if not each:
                continue
            if name == PREFIX_HIT:
                yield Result(f"peer_{name}_ttft_p50/{engine}", 1e3 * statistics.median(map(first_hit, each)), "ms")
                continue
            yield _rate(f"peer_{name}_tokens_per_second/{engine}", [tokens_per_second(run) for run in each])
            seen = latency(tuple(answer for run in each for answer in run.answers))
            yield Result(f"peer_{name}_ttft_p50/{engine}", seen.first_p50, "ms")
            yield Result(f"peer_{name}_ttft_p99/{engine}", seen.first_p99, "ms")
            if seen.gap_p50 is not None and seen.gap_p99 is not None:
                yield Result(f"peer_{name}_itl_p50/{engine}", seen.gap_p50, "ms")
                yield Result(f"peer_{name}_itl_p99/{engine}", seen.gap_p99, "ms")
    for engine, peak in peak_bytes(rounds).items():
        yield Result(f"peer_peak_memory/{engine}", peak / (1 << 20), "MiB")


def _rate(name: str, rates: list[float]) -> Result:
    spread = None
    if len(rates) > 1:
        low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
        spread = (low, high)
    return Result(name, statistics.median(rates), "tokens/s", spread=spread)
