"""How many tokens LRU hits at every capacity at once: exactly, or from a sample of the pages.

The samples are SHARDS (Waldspurger, Park, Garthwaite, Ahmad 2015): a page is in the sample if a hash of it is low, so
either all of its references count or none, and distances shrink by the share of the pages that are in. Both forms carry
the paper's correction (-adj): what the sample has too few or too many references, compared with its share of them all,
are taken for references of distance 0, because the pages with very many references are near the top of the stack.

A sample of pages cuts pages out of chains, but keeps the prefix rule: a page is hit exactly if its stack distance is
less than the capacity (stack_distance.py), and the sample estimates that distance of the page itself.

The exact curve of ten million references takes a few seconds. A sample of a fixed rate takes a third of that, mostly to
look at every reference once; one of a fixed size bounds what has to be remembered, not the time. No policy but LRU has
such a curve.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from kvpager.errors import ConfigError
from kvpager.simulator.stack_distance import NEVER, NewestFirst, stack_distances
from kvpager.simulator.trace import Trace

_HASHES = 1 << 24  # values of the sampling hash


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """LRU's hits by capacity: a staircase that rises at each of ``capacities`` to the ratio beside it.

    ``sampled_references``: how many references it rests on; ``rate``: the (last) share of pages in the sample.
    """

    capacities: np.ndarray  # float64 [n], rising, in blocks
    token_ratios: np.ndarray  # float64 [n], hits per prompt token
    block_ratios: np.ndarray  # float64 [n], hits per page read
    rate: float
    sampled_references: int

    def token_ratio(self, capacity: float) -> float:
        return self._at(self.token_ratios, capacity)

    def block_ratio(self, capacity: float) -> float:
        return self._at(self.block_ratios, capacity)

    def _at(self, ratios: np.ndarray, capacity: float) -> float:
        step = int(np.searchsorted(self.capacities, capacity, side="right"))
        return float(ratios[step - 1]) if step else 0.0


@dataclass(frozen=True, slots=True)
class CurveError:
    """How far a sampled curve is from the exact one, as differences of the token ratio."""

    mean: float  # over capacities at equal steps, as in the paper
    largest: float


def exact_curve(trace: Trace, start: int = 0) -> MissRatioCurve:
    """Hits of the requests from ``start`` on; the earlier ones only fill the cache."""
    trace.require_pages()
    references = _References.of(trace, start)
    distances = stack_distances(trace.first, trace.pages, trace.num_blocks)
    return references.curve(np.arange(trace.num_references), distances, 1.0, 1.0)


def sampled_curve(trace: Trace, rate: float = 0.01, *, start: int = 0, seed: int = 0) -> MissRatioCurve:
    """SHARDS of a fixed rate: about that share of the pages."""
    trace.require_pages()
    if not 0 < rate <= 1:
        raise ConfigError(f"a sampling rate must be above 0 and at most 1, not {rate}")
    below = max(1, round(rate * _HASHES))
    is_in = _page_hashes(trace.num_blocks, seed)[trace.pages] < below
    places = np.flatnonzero(is_in)
    first = np.concatenate([[0], np.cumsum(is_in)])[trace.first]
    distances = stack_distances(first, trace.pages[places], trace.num_blocks)
    references = _References.of(trace, start)
    return references.curve(places, distances, below / _HASHES, below / _HASHES)


def sampled_curve_of_size(trace: Trace, max_pages: int = 8192, *, start: int = 0, seed: int = 0) -> MissRatioCurve:
    """SHARDS of a fixed size: never more than ``max_pages`` pages in the sample, whatever the trace has.

    It begins with all pages; when there are too many, the ones with the highest hashes go and stay out.
    """
    trace.require_pages()
    if max_pages < 1:
        raise ConfigError(f"a sample needs at least one page, not {max_pages}")
    sample = _Sample(trace, max_pages, seed)
    borders = trace.first.tolist()
    found = [sample.take(request, borders[request], borders[request + 1]) for request in range(trace.num_requests)]
    places, distances, rates = (np.concatenate([one[i] for one in found]) for i in range(3))
    return _References.of(trace, start).curve(places.astype(np.int64), distances, rates, sample.below / _HASHES)


def curve_error(sampled: MissRatioCurve, exact: MissRatioCurve, steps: int = 200) -> CurveError:
    """Compared at ``steps`` capacities, up to where the exact curve stops rising."""
    last = exact.capacities[-1] if len(exact.capacities) else 1.0
    capacities = np.linspace(0, last, steps + 1)[1:]
    apart = np.array([abs(sampled.token_ratio(c) - exact.token_ratio(c)) for c in capacities])
    return CurveError(float(apart.mean()), float(apart.max()))


@dataclass(frozen=True, slots=True)
class _References:
    """All references of a trace with what each is worth, and the first one that counts."""

    tokens: np.ndarray  # float64 [references]
    first_counted: int
    asked_tokens: float  # prompt tokens of the requests that count; also those in no page

    @classmethod
    def of(cls, trace: Trace, start: int) -> "_References":
        tokens = np.full(trace.num_references, trace.page_tokens, np.float64)
        tails = np.flatnonzero(trace.has_partial_tail)
        tokens[trace.first[tails + 1] - 1] = (trace.input_tokens[tails] - 1) % trace.page_tokens + 1
        return cls(tokens, int(trace.first[start]), float(trace.input_tokens[start:].sum(dtype=np.int64)))

    def curve(
        self, places: np.ndarray, distances: np.ndarray, rates: np.ndarray | float, rate: float
    ) -> MissRatioCurve:
        """``places``: which references are in the sample; ``rates``: the share of the pages that was in it then."""
        is_counted = places >= self.first_counted
        rates = np.broadcast_to(rates, places.shape)[is_counted]
        places, distances = places[is_counted], distances[is_counted]
        tokens = self.tokens[places] / rates
        surplus_pages = len(self.tokens) - self.first_counted - (1 / rates).sum()
        surplus_tokens = self.tokens[self.first_counted :].sum() - tokens.sum()
        is_hit = distances != NEVER
        needed = np.concatenate([[1.0], distances[is_hit] / rates[is_hit] + 1])
        capacities, steps = np.unique(needed, return_inverse=True)
        by_pages = np.bincount(steps, np.concatenate([[surplus_pages], 1 / rates[is_hit]]))
        by_tokens = np.bincount(steps, np.concatenate([[surplus_tokens], tokens[is_hit]]))
        return MissRatioCurve(
            capacities=capacities,
            token_ratios=_ratios(by_tokens, self.asked_tokens),
            block_ratios=_ratios(by_pages, len(self.tokens) - self.first_counted),
            rate=rate,
            sampled_references=len(places),
        )


def _ratios(hits: np.ndarray, asked: float) -> np.ndarray:
    """Sums of the hits per what was asked for. The correction may lead outside of 0 to 1."""
    return np.clip(np.cumsum(hits) / max(1.0, asked), 0.0, 1.0)


class _Sample:
    """The pages in a sample of fixed size, in the order of their last use."""

    def __init__(self, trace: Trace, max_pages: int, seed: int) -> None:
        self.below = _HASHES  # pages with lower hashes are in
        self._pages = trace.pages
        self._hashes = _page_hashes(trace.num_blocks, seed)
        self._max_pages = max_pages
        self._last = np.full(trace.num_blocks, NEVER, np.int32)  # user; NEVER also for pages that are out
        self._newest = NewestFirst(trace.num_requests)
        self._highest: list[tuple[int, int]] = []  # heap of (hash negated, page)

    def take(self, request: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places, distances and rates of the references that are in the sample when the request comes."""
        places = start + np.flatnonzero(self._hashes[self._pages[start:stop]] < self.below)
        chain = self._pages[places]
        users = self._last[chain]
        distances = np.full(len(places), NEVER, np.int64)
        rates = np.full(len(places), self.below / _HASHES)
        runs = [*np.flatnonzero(np.diff(users, prepend=-2)).tolist(), len(users)]
        borders = list(pairwise(runs))
        for begin, end in borders:
            if users[begin] != NEVER:
                distances[begin:end] = self._newest.count_after(int(users[begin])) + np.arange(end - begin)
        for begin, end in borders:
            if users[begin] != NEVER:
                self._newest.add(int(users[begin]), begin - end)
        self._newest.add(request, len(chain))
        self._last[chain] = request
        for page in chain[users == NEVER].tolist():
            heappush(self._highest, (-int(self._hashes[page]), page))
        self._shrink()
        return places, distances, rates

    def _shrink(self) -> None:
        while len(self._highest) > self._max_pages or (self._highest and -self._highest[0][0] >= self.below):
            negated, page = heappop(self._highest)
            self.below = -negated
            self._newest.add(int(self._last[page]), -1)
            self._last[page] = NEVER


def _page_hashes(num_blocks: int, seed: int) -> np.ndarray:
    """int64 [U], 0 .. _HASHES - 1: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over page numbers."""
    mixed = np.arange(num_blocks, dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(40)).astype(np.int64)
