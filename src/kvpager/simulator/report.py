"""What a replay found, as numbers: hits, evictions, moves between tiers, ages, occupancy.

Everything about hits follows from how many pages of each request were found, so every way of replaying is counted by
the same lines here. Knows no policy and draws nothing.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvpager.simulator.ages import count_ages
from kvpager.simulator.path import ReplayedPath
from kvpager.simulator.trace import Trace

if TYPE_CHECKING:
    from kvpager.simulator.replay_cache import LevelPlan, SimulatedCache


@dataclass(frozen=True, slots=True)
class Hits:
    """Blocks and tokens of prompts that were found, and those that were asked for."""

    blocks: int
    tokens: int
    asked_blocks: int
    asked_tokens: int

    @property
    def ratio(self) -> float:
        """Of tokens."""
        return self.tokens / self.asked_tokens if self.asked_tokens else 0.0


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One tier. ``stored``: pages copied into it from above; ``promoted``: that went up from it; ``evicted``: that left
    it for want of room; ``refused``: offered from above and not taken. ``age_at_eviction``: see simulator/ages.py."""

    name: str
    policy: str
    capacity: int
    hits: Hits
    second_half: Hits
    stored: int
    promoted: int
    evicted: int
    refused: int
    age_at_eviction: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Live pages are held for their service time. ``mean_live``, ``peak_live``: blocks, whatever the capacity.
    ``is_tight``: the capacity is below three times the mean of them, so requests compete for room, not for reuse."""

    mean_live: float
    peak_live: int
    is_tight: bool


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One policy at one capacity.

    ``whole``, ``second_half``: hits on all levels, over all requests and over the later half of them. ``net``: whole,
    without the pages that most requests start with. ``cut``: requests of which not all pages found room; the others
    were computed and not kept. ``occupancy``: mean share of the device's blocks that held a page. ``age_at_hit``: how
    long before the page had been asked for. ``levels[0]`` is the device.
    """

    trace: str
    policy: str
    capacity: int
    whole: Hits
    second_half: Hits
    net: Hits
    evictions: int
    cut: int
    occupancy: float
    age_at_hit: tuple[int, ...]
    levels: tuple[LevelResult, ...]
    inclusive: bool
    concurrency: Concurrency | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class TraceFacts:
    """A trace and what follows from it alone; each fact is computed once, when something asks for it."""

    def __init__(self, trace: Trace) -> None:
        trace.require_pages()
        self.trace = trace

    @cached_property
    def _lengths(self) -> np.ndarray:
        return self.trace.num_pages

    @cached_property
    def _places(self) -> np.ndarray:
        """int32[references]: the number of each page within its request."""
        trace = self.trace
        return (np.arange(trace.num_references) - np.repeat(trace.first[:-1], self._lengths)).astype(np.int32)

    @cached_property
    def _asked_before(self) -> np.ndarray:
        """float32[references]: seconds since the page was asked for before; infinite for the first time."""
        pages = self.trace.pages
        order = np.argsort(pages, kind="stable")
        asked = np.repeat(self.trace.times, self._lengths)[order]
        age = np.full(len(pages), np.inf, np.float32)
        again = pages[order[1:]] == pages[order[:-1]]
        age[order[1:][again]] = (asked[1:] - asked[:-1])[again]
        return age

    @cached_property
    def _lengths_net(self) -> np.ndarray:
        return self.trace.net_of_head(self._lengths)

    def hits(self, depth: np.ndarray, since: int = 0) -> Hits:
        """Of a replay that found the first ``depth[r]`` pages of request r, from request ``since`` on."""
        return self.hits_of(depth, self.trace.hit_tokens(depth), since)

    def hits_of(self, pages: np.ndarray, tokens: np.ndarray, since: int = 0) -> Hits:
        """Of what was found by each request."""
        return Hits(
            blocks=int(pages[since:].sum(dtype=np.int64)),
            tokens=int(tokens[since:].sum(dtype=np.int64)),
            asked_blocks=int(self._lengths[since:].sum(dtype=np.int64)),
            asked_tokens=int(self.trace.input_tokens[since:].sum(dtype=np.int64)),
        )

    def hits_net(self, depth: np.ndarray) -> Hits:
        """``hits`` without the head that most requests share, as if nobody had asked for it."""
        trace = self.trace
        head_hit = depth - trace.net_of_head(depth)
        head = self._lengths - self._lengths_net
        return Hits(
            blocks=int((depth - head_hit).sum(dtype=np.int64)),
            tokens=int((trace.hit_tokens(depth) - trace.hit_tokens(head_hit)).sum()),
            asked_blocks=int(self._lengths_net.sum()),
            asked_tokens=int((trace.input_tokens - trace.hit_tokens(head)).sum()),
        )

    def age_at_hit(self, depth: np.ndarray) -> tuple[int, ...]:
        was_hit = self._places < np.repeat(depth, self._lengths)
        return tuple(count_ages(self._asked_before[was_hit]).tolist())


def summarise_path(facts: TraceFacts, path: ReplayedPath) -> ReplayResult:
    """What a replay over arrays came to. It does not know which page went, so not how old it was."""
    depth, evicted = path.hit_pages, int(path.evictions.sum(dtype=np.int64))
    kept = np.minimum(facts.trace.num_pages, path.capacity)
    held = np.cumsum(kept - depth - path.evictions)
    whole, half = facts.hits(depth), facts.hits(depth, facts.trace.second_half)
    level = LevelResult("device", path.policy, path.capacity, whole, half, 0, 0, evicted, 0, None)
    return ReplayResult(
        trace=facts.trace.name,
        policy=path.policy,
        capacity=path.capacity,
        whole=whole,
        second_half=half,
        net=facts.hits_net(depth),
        evictions=evicted,
        cut=int(np.count_nonzero(facts.trace.num_pages > path.capacity)),
        occupancy=float(held.mean()) / path.capacity if len(held) else 0.0,
        age_at_hit=facts.age_at_hit(depth),
        levels=(level,),
        inclusive=False,
    )


def summarise(
    facts: TraceFacts,
    plans: list["LevelPlan"],
    cache: "SimulatedCache",
    *,
    inclusive: bool,
    concurrency: Concurrency | None = None,
) -> ReplayResult:
    """What a replay with the objects of the product came to."""
    depth = cache.found.sum(axis=0)
    levels = tuple(
        LevelResult(
            plan.name,
            plan.policy,
            plan.capacity,
            _level_hits(facts, cache, at, 0),
            _level_hits(facts, cache, at, facts.trace.second_half),
            count.stored,
            count.promoted,
            count.evicted,
            count.refused,
            tuple(cache.age_at_eviction[at].tolist()),
        )
        for at, (plan, count) in enumerate(zip(plans, cache.counts, strict=True))
    )
    return ReplayResult(
        trace=facts.trace.name,
        policy=plans[0].policy,
        capacity=plans[0].capacity,
        whole=facts.hits(depth),
        second_half=facts.hits(depth, facts.trace.second_half),
        net=facts.hits_net(depth),
        evictions=cache.counts[0].evicted,
        cut=cache.num_cut,
        occupancy=float(cache.occupancy.mean()) / plans[0].capacity if len(depth) else 0.0,
        age_at_hit=facts.age_at_hit(depth),
        levels=levels,
        inclusive=inclusive,
        concurrency=concurrency,
    )


def _level_hits(facts: TraceFacts, cache: "SimulatedCache", at: int, since: int) -> Hits:
    """The part of the hits that one level had. The last page of a prompt may be shorter than the others."""
    trace, found = facts.trace, cache.found[at]
    short = np.maximum(trace.num_pages * trace.page_tokens - trace.input_tokens, 0)
    tokens = found.astype(np.int64) * trace.page_tokens - np.where(cache.tail_level == at, short, 0)
    return facts.hits_of(found, tokens, since)
