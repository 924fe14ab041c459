"""Figures of one run of a peer, and of one peer against the best. Knows no processes."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvpager.bench.peer_process import Answer, Run
from kvpager.bench.report import Result


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    first_p50: float
    first_p99: float
    gap_p50: float | None
    gap_p99: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """With the reference's greedy tokens. ``share``: of all tokens, those before an answer's first difference.
    ``first``: the earliest difference; None: there is none. ``margin``: the reference's largest margin where an answer
    first differs, in logits: how sure it was of what the other did not choose."""

    share: float
    first: int | None
    margin: float


def tokens_per_second(run: Run) -> float:
    return sum(len(answer.tokens) for answer in run.answers) / run.seconds


def latency(answers: tuple[Answer, ...]) -> Latency:
    first = [1e3 * (answer.times[0] - answer.due) for answer in answers]
    gaps = [1e3 * gap for answer in answers for gap in np.diff(answer.times).tolist()]
    has_gaps = bool(gaps)
    return Latency(
        float(np.percentile(first, 50)),
        float(np.percentile(first, 99)),
        float(np.percentile(gaps, 50)) if has_gaps else None,
        float(np.percentile(gaps, 99)) if has_gaps else None,
    )


def most_at_once(answers: tuple[Answer, ...]) -> int:
    """The most requests that were between their first and their last token at one moment."""
    moments = sorted([(answer.times[0], 1) for answer in answers] + [(answer.times[-1], -1) for answer in answers])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most


def agreement(found: tuple[Answer, ...], reference: tuple[Answer, ...]) -> Agreement:
    agreed = total = 0
    first: int | None = None
    margin = 0.0
    for ours, theirs in zip(found, reference, strict=True):
        pairs = zip(ours.tokens, theirs.tokens, strict=True)
        same = next((i for i, pair in enumerate(pairs) if pair[0] not in (None, pair[1])), None)
        total += len(theirs.tokens)
        agreed += len(theirs.tokens) if same is None else same
        if same is not None:
            first = same if first is None else min(first, same)
            margin = max(margin, theirs.margins[same])
    return Agreement(agreed / total, first, margin)


def best_of(seconds: Mapping[str, list[float]], peers: list[str]) -> str | None:
    """The fastest of ``peers`` by its median; None where none was measured."""
    measured = [name for name in peers if seconds.get(name)]
    return min(measured, key=lambda name: statistics.median(seconds[name]), default=None)


def ratio(
    name: str, over: list[float], under: list[float], *, at_least: float | None = None, at_most: float | None = None
) -> Result:
    """The median of ``over`` by ``under``, paired by round; with quartiles where there are two rounds or more."""
    found = [a / b for a, b in zip(over, under, strict=False)]  # a peer may have fewer rounds
    spread = None
    if len(found) > 1:
        low, _, high = statistics.quantiles(found, n=4, method="inclusive")
        spread = (low, high)
    return Result(name, statistics.median(found), "ratio", at_most, at_least, spread)
