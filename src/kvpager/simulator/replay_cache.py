"""A cache during a replay: the device and the tiers below it, as trees in arrays, under policies of the product.

    arrive(request)   the longest prefix that is found is used and what lies below the device comes up; for the other
                      pages victims leave; then all pages of the request are held
    depart(request)   they are let go, the last page first

A page that leaves a level goes to the nearest one below that takes it, as in the product. *Exclusive*: a page
that comes up leaves the level it was in, so the levels together hold as many pages as their capacities. *Inclusive*: it
stays there too, so that dropping it from the device later costs no copy. Knows the order of events that its callers
choose, and no clock but the trace's.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvpager.eviction.make import make_policy
from kvpager.eviction.policy import EvictionPolicy, History, JudgingPolicy, StopReason, Use
from kvpager.simulator.ages import NUM_BUCKETS, count_ages
from kvpager.simulator.page_keys import page_keys
from kvpager.simulator.replay_level import Level
from kvpager.simulator.trace import Trace


class MakePolicy(Protocol):
    def __call__(self, name: str, num_blocks: int, clock: "ReplayClock") -> EvictionPolicy: ...


class ReplayClock:
    """The time of the trace, as the policies see it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """A tier to replay: its name, its capacity in blocks and the policy that orders it."""

    name: str
    capacity: int
    policy: str


@dataclass(slots=True)
class LevelCounts:
    """Of one level. ``stored``: pages that came from above; ``promoted``: that went up; ``evicted``: that left for
    want of room; ``refused``: that were offered from above and not taken."""

    stored: int = 0
    promoted: int = 0
    evicted: int = 0
    refused: int = 0


class SimulatedCache:
    """``levels[0]`` is the device. ``inclusive``: see above; for a single level it changes nothing. ``keys``: what the
    policies know the pages by, uint64."""

    def __init__(
        self,
        trace: Trace,
        plans: list[LevelPlan],
        *,
        inclusive: bool = False,
        make: MakePolicy = make_policy,
        keys: np.ndarray | None = None,
    ) -> None:
        self._trace = trace
        self._inclusive = inclusive
        self._clock = ReplayClock()
        keys = page_keys(len(trace.parent)) if keys is None else keys
        self.levels = self._make_levels(plans, make, keys)
        self.counts = [LevelCounts() for _ in plans]
        self.found = np.zeros((len(plans), len(trace.times)), np.int32)  # pages, by level and request
        self.tail_level = np.full(len(trace.times), -1, np.int8)  # where the last page of a fully found request was
        self.age_at_eviction = np.zeros((len(plans), NUM_BUCKETS), np.int64)
        self.occupancy = np.zeros(len(trace.times), np.int32)  # pages on the device when a request has come
        self.num_cut = 0  # requests of which not all pages fit
        self._gone: list[list[int]] = [[] for _ in plans]  # pages that left each level since they were counted
        self._matched = np.zeros(len(trace.times), np.float32)  # share of the prompt
        self._last_request = np.full(len(trace.parent), -1, np.int32)  # that asked for a page

    def _make_levels(self, plans: list[LevelPlan], make: MakePolicy, keys: np.ndarray) -> list[Level]:
        """Where the device's policy judges pages, those of the tiers below it judge as it does."""
        levels: list[Level] = []
        for plan in plans:
            above = levels[-1].judge if levels and plan.policy == plans[0].policy else None
            policy = make(plan.policy, plan.capacity, self._clock) if above is None else above.below(plan.capacity)
            judge = policy if len(plans) > 1 and isinstance(policy, JudgingPolicy) else None
            levels.append(Level(plan.name, self._trace.parent, keys, plan.capacity, policy, judge))
        return levels

    def arrive(self, request: int, now: float) -> np.ndarray:
        """Returns the pages that are held from now on, a chain: those of the request, as far as they fit."""
        self._clock.now = now
        device = self.levels[0]
        pages = self._trace.pages[self._trace.first[request] : self._trace.first[request + 1]]
        depth = device.depth(pages)
        device.use(pages[:depth])
        room = device.num_available + depth
        if room < len(pages):
            self.num_cut += 1
            pages = pages[:room]
        below = self._find_below(pages[depth:])
        self._note_found(request, depth, below)
        coming = pages[depth : depth + len(below)]
        histories = self._bring_up(coming, below)
        self._make_room(0, len(pages) - depth)
        self._count_gone()
        device.enter(pages[depth:])
        if histories:
            device.take_over(coming, histories)
        self._last_request[pages] = request
        self.occupancy[request] = device.num_pages
        if self._inclusive:
            self._settle(coming, below, request)
        return pages

    def depart(self, request: int, pages: np.ndarray, now: float) -> None:
        """``pages``: as ``arrive`` returned them."""
        self._clock.now = now
        if len(pages):
            self.levels[0].let_go(pages, self._use(request, pages.item(-1)))

    # -- inside -------------------------------------------------------------------------------------------------

    def _find_below(self, pages: np.ndarray) -> np.ndarray:
        """The nearest level that has each page, as far as every page is somewhere."""
        place = np.zeros(len(pages), np.int8)
        for at in range(len(self.levels) - 1, 0, -1):
            place[self.levels[at].slot_of[pages] >= 0] = at
        missing = place == 0
        return place[: int(missing.argmax())] if missing.any() else place

    def _note_found(self, request: int, depth: int, below: np.ndarray) -> None:
        trace, found = self._trace, depth + len(below)
        self.found[0, request] = depth
        for at in range(1, len(self.levels)):
            self.found[at, request] = np.count_nonzero(below == at)
        size = int(trace.input_tokens[request])
        if found == trace.first[request + 1] - trace.first[request]:
            self.tail_level[request] = below[-1] if len(below) else 0
        self._matched[request] = min(1.0, found * trace.page_tokens / size) if size else 0.0

    def _bring_up(self, pages: np.ndarray, below: np.ndarray) -> list[History]:
        """Returns what the levels below know of the pages, where their policies judge pages."""
        known: dict[int, History] = {}
        for at, level in enumerate(self.levels[1:], 1):
            here = pages[below == at]
            self.counts[at].promoted += len(here)
            if level.judge is not None:
                known.update(zip(here.tolist(), level.histories(here), strict=True))
            if self._inclusive:
                level.use(here)  # held until they are up, so that they don't go for those that come down
            else:
                level.take_out(here)
        return [known[page] for page in pages.tolist()] if known else []

    def _settle(self, pages: np.ndarray, below: np.ndarray, request: int) -> None:
        for at, level in enumerate(self.levels[1:], 1):
            here = pages[below == at]
            if len(here):
                level.let_go(here, self._use(request, here.item(-1)))

    def _make_room(self, at: int, count: int) -> None:
        gone = self.levels[at].evict(count)
        if at + 1 == len(self.levels):
            self._gone[at].extend(gone)
        else:
            for page in gone:
                self._offer_below(at, page)

    def _offer_below(self, at: int, page: int) -> None:
        """A page has left level ``at``: unless a level below has it, the nearest that takes it gets it."""
        self._gone[at].append(page)
        history, below = self.levels[at].history_of_gone, range(at + 1, len(self.levels))
        owners = [to for to in below if self.levels[to].slot_of.item(page) >= 0]
        if history is not None:
            for to in owners:
                self.levels[to].remember(page, history)
        for to in () if owners else below:
            if self._is_worth_keeping(to, page, history) and self._store(to, page, history):
                self.counts[to].stored += 1
                break
            self.counts[to].refused += 1

    def _store(self, at: int, page: int, history: History | None) -> bool:
        """Whether there was room."""
        level, last = self.levels[at], self._last_request.item(page)
        for victim in level.store(page, self._use(last, page), history):
            self._offer_below(at, victim)
        return level.slot_of.item(page) >= 0

    def _count_gone(self) -> None:
        for at, pages in enumerate(self._gone):
            if pages:
                self.counts[at].evicted += len(pages)
                asked = self._trace.times[self._last_request[pages]]
                self.age_at_eviction[at] += count_ages(self._clock.now - asked)
                pages.clear()

    def _is_worth_keeping(self, at: int, page: int, history: History | None) -> bool:
        """Whether a page that left a level above is to be copied into level ``at``: if others there could not be
        reached without it, or if it is worth as much as what would go for it. As tiers/slot_book.py decides."""
        level = self.levels[at]
        return history is None or level.has_children_of(page) or level.would_take(page, history)

    def _use(self, request: int, page: int) -> Use:
        """What the policies are told of a request when pages go, of which ``page`` is the last."""
        trace = self._trace
        is_last = trace.pages.item(trace.first.item(request + 1) - 1) == page
        return Use(
            output_tokens=trace.output_tokens.item(request),
            matched=self._matched.item(request),
            stop=StopReason(trace.stop.item(request)),
            partial_tail=is_last and trace.has_partial_tail.item(request),
        )

    def check(self) -> None:
        """Raises InvariantError unless the books of every level agree."""
        for level in self.levels:
            level.check()
