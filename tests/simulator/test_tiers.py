"""Replays over tiers: exclusive ones hold as much as one of their size, and each move is counted."""

import numpy as np
import pytest

from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import NO_USE, History
from kvpager.simulator.replay import replay, replay_levels
from kvpager.simulator.replay_cache import LevelPlan, SimulatedCache
from kvpager.simulator.report import TraceFacts
from tests.simulator.forest import PAGE_TOKENS, random_trace, trace_of
from tests.simulator.naive import NaiveLevels

NAMES = ("device", "host", "disk")


def plans(*capacities: int) -> list[LevelPlan]:
    return [LevelPlan(name, capacity, "lru") for name, capacity in zip(NAMES, capacities, strict=False)]


@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("capacities", [(8, 1), (8, 5), (9, 30), (8, 4, 9)], ids=str)
def test_moves_and_hits_are_those_of_a_model_that_looks_at_everything(
    capacities: tuple[int, ...], inclusive: bool
) -> None:
    for seed in range(4):
        trace = random_trace(seed)
        cache = SimulatedCache(trace, plans(*capacities), inclusive=inclusive)
        naive = NaiveLevels(trace, list(capacities), inclusive=inclusive)
        for request, now in enumerate(trace.times.tolist()):
            cache.depart(request, cache.arrive(request, now), now)
            naive.depart(naive.arrive(request))
            cache.check()
            for level, stamps in zip(cache.levels, naive.stamps, strict=True):
                assert {page for page in range(trace.num_blocks) if level.slot_of[page] >= 0} == set(stamps)
        assert cache.found.tolist() == naive.found
        assert [count.stored for count in cache.counts] == naive.stored
        assert [count.evicted for count in cache.counts] == naive.evicted
        assert [count.promoted for count in cache.counts] == [0, *(sum(found) for found in naive.found[1:])]


def test_exclusive_lru_tiers_hit_what_one_lru_tier_of_their_size_hits() -> None:
    facts = TraceFacts(random_trace(11, requests=300))
    tiered = replay_levels(facts, plans(8, 17))
    assert tiered.whole == replay(facts, "lru", 25).whole
    assert tiered.levels[0].hits == replay(facts, "lru", 8).whole
    assert sum(level.hits.tokens for level in tiered.levels) == tiered.whole.tokens


def test_an_inclusive_tier_copies_less_and_holds_less() -> None:
    facts = TraceFacts(random_trace(12, requests=300))
    exclusive, inclusive = (replay_levels(facts, plans(8, 17), inclusive=each) for each in (False, True))
    assert inclusive.levels[1].stored < exclusive.levels[1].stored
    assert inclusive.whole.tokens <= exclusive.whole.tokens


def test_a_short_last_page_counts_where_it_was_found() -> None:
    chains = [[0, 1], [2, 3], [0, 1]]
    trace = trace_of(chains, input_tokens=[7, 8, 7], partial=[True, False, True])
    found = replay_levels(TraceFacts(trace), plans(2, 5))
    assert [level.hits.tokens for level in found.levels] == [0, 7]
    assert found.levels[1].hits.blocks == 2
    assert found.whole.tokens == 7 < 2 * PAGE_TOKENS


class Judging(LRU):
    """LRU that counts uses, and thinks a page worth as many as it had."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.uses = [0] * num_blocks

    def enter(self, blocks: np.ndarray, keys: np.ndarray) -> None:
        super().enter(blocks, keys)
        for block in blocks.tolist():
            self.uses[block] = 1

    def hit(self, blocks: np.ndarray) -> None:
        super().hit(blocks)
        for block in blocks.tolist():
            self.uses[block] += 1

    def below(self, num_blocks: int) -> "Judging":
        return type(self)(num_blocks)

    def history(self, block: int) -> History:
        return History(0.0, self.uses[block], 0)

    def take_over(self, block: int, history: History) -> None:
        self.release(np.array([block]), NO_USE)
        self.uses[block] = history.uses

    def worth(self, block: int) -> float:
        return self.uses[block]

    def worth_of(self, history: History) -> float:
        return history.uses


def test_a_policy_that_judges_decides_what_goes_down_and_a_page_keeps_its_history() -> None:
    chains = [[0], [0], [1], [2], [0], [3], [4]]  # 0 is used twice before it goes down, the others once
    plan = plans(1, 1)
    cache = SimulatedCache(trace_of(chains), plan, make=lambda name, num_blocks, clock: Judging(num_blocks))
    below = []
    for request in range(len(chains)):
        cache.depart(request, cache.arrive(request, float(request)), float(request))
        cache.check()
        below.append(int(np.flatnonzero(cache.levels[1].slot_of >= 0)[0]) if cache.levels[1].num_pages else None)
    assert below == [None, None, 0, 0, 2, 0, 0]  # 1 was not worth its place; 2 found it free, and 0 was worth more
    judge = cache.levels[1].judge
    assert judge is not None
    assert judge.history(0).uses == 3
    assert (cache.counts[1].stored, cache.counts[1].refused) == (3, 2)
    assert SimulatedCache(trace_of(chains), plan).levels[1].judge is None


def test_a_page_that_others_below_hang_under_is_kept_whatever_it_is_worth() -> None:
    class Partial(Judging):
        def worth_of(self, history: History) -> float:
            return 0.0  # so nothing is worth a place that is taken

    chains = [[0], [1, 2], [3, 4], [1, 2]]  # 2 goes down beside 0, and then 1, which 2 hangs under
    cache = SimulatedCache(trace_of(chains), plans(2, 2), make=lambda name, num_blocks, clock: Partial(num_blocks))
    for request in range(len(chains)):
        cache.depart(request, cache.arrive(request, float(request)), float(request))
        cache.check()
    assert cache.found.tolist() == [[0, 0, 0, 0], [0, 0, 0, 2]]
    assert cache.counts[1].refused == 0


def test_a_tier_hears_what_the_device_knew_of_a_page_that_both_have() -> None:
    chains = [[0], [1], [0], [0], [1]]
    trace = trace_of(chains)
    made = [LevelPlan("device", 1, "lru"), LevelPlan("host", 2, "lru")]
    cache = SimulatedCache(trace, made, inclusive=True, make=lambda name, num_blocks, clock: Judging(num_blocks))
    for request in range(len(chains)):
        cache.depart(request, cache.arrive(request, float(request)), float(request))
        cache.check()
    host = cache.levels[1]
    assert cache.counts[1].stored == 2
    assert [history.uses for history in host.histories(np.array([0]))] == [3]
