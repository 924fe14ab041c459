"""The policy that learns: the Python form, the native one, and that both choose the same."""

import random
from itertools import pairwise

import numpy as np
import pytest

from kvpager import native
from kvpager.eviction.adaptive import TRAINED, Adaptive, make_adaptive
from kvpager.eviction.adaptive_guard import Credit
from kvpager.eviction.adaptive_hazards import _START, NUM_BINS, NUM_KINDS, Hazards, bin_of
from kvpager.eviction.adaptive_native import NativeAdaptive
from kvpager.eviction.adaptive_sample import Conversations, ReuseSample, Turn, mix
from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import EvictionPolicy, History, JudgingPolicy, StopReason, Use
from tests.contracts.eviction_policy import EvictionPolicyContract, ManualClock, ids

needs_native = pytest.mark.skipif(native.module() is None, reason="no native kernels")


class TestInPython(EvictionPolicyContract):
    name = "adaptive"

    def make(self, num_blocks: int, clock: ManualClock | None = None) -> Adaptive:
        return Adaptive(num_blocks, clock or ManualClock())


def watched_key(chain: tuple[int, ...]) -> int:
    """A key of the sample, so that much is learned from little."""
    key = hash(chain) & (1 << 64) - 1
    while not ReuseSample.has(key):
        key = mix(key)
    return key


class Chats:
    """A cache of chains under a policy: conversations of growing prompts, some with tools, and questions asked once."""

    def __init__(self, policy: EvictionPolicy, clock: ManualClock, num_blocks: int, seed: int) -> None:
        self.policy, self.clock, self.num_blocks = policy, clock, num_blocks
        self.random = random.Random(seed)
        self.block_of: dict[tuple[int, ...], int] = {}
        self.free = list(range(num_blocks))
        self.chats: list[list[int]] = []
        self.num_found = 0

    def children(self, chain: tuple[int, ...]) -> bool:
        return any(other[:-1] == chain for other in self.block_of)

    def turn(self) -> None:
        self.clock.now += self.random.choice([0.0, 1.0, 3.0, 9.0])
        is_chat = bool(self.chats) and self.random.random() < 0.6
        if not is_chat:
            self.chats.append([self.random.randrange(3), self.random.randrange(1 << 30)])
        chat = self.random.choice(self.chats[-12:])
        chat.extend(self.random.randrange(1 << 30) for _ in range(self.random.randrange(3)))
        prompt = [*chat, self.random.randrange(1 << 30)]
        stop = self.random.choice(list(StopReason))
        self.request(prompt, Use(self.random.randrange(1200), 0.0, stop, partial_tail=self.random.random() < 0.8))

    def request(self, prompt: list[int], use: Use) -> None:
        chains = [tuple(prompt[: n + 1]) for n in range(len(prompt))][: self.num_blocks]
        found = next((n for n, chain in enumerate(chains) if chain not in self.block_of), len(chains))
        self.num_found += found
        self.policy.hit(ids(*(self.block_of[chain] for chain in chains[:found])))
        for chain in chains[found:]:
            if not self.free:
                self.evict(set(chains))
            self.block_of[chain] = self.free.pop()
        names = np.array([watched_key(chain) for chain in chains[found:]], np.uint64)
        self.policy.enter(ids(*(self.block_of[chain] for chain in chains[found:])), names)
        self.policy.release(ids(*(self.block_of[chain] for chain in reversed(chains))), use)
        if not self.children(chains[-1]):
            self.policy.offer(ids(self.block_of[chains[-1]]))

    def evict(self, live: set[tuple[int, ...]]) -> None:
        victim = self.policy.victim()
        assert victim is not None
        chain = next(chain for chain, block in self.block_of.items() if block == victim)
        self.policy.leave(ids(victim))
        del self.block_of[chain]
        self.free.append(victim)
        if chain[:-1] in self.block_of and chain[:-1] not in live and not self.children(chain[:-1]):
            self.policy.offer(ids(self.block_of[chain[:-1]]))


@needs_native
@pytest.mark.parametrize("seed", range(2))
def test_both_forms_choose_the_same_victims(seed: int) -> None:
    clocks = ManualClock(), ManualClock()
    kernels = native.module()
    assert kernels is not None
    python, compiled = Adaptive(100, clocks[0]), NativeAdaptive(100, clocks[1], kernels)
    pair = [Chats(python, clocks[0], 100, seed), Chats(compiled, clocks[1], 100, seed)]
    for turn in range(1500):
        for each in pair:
            each.turn()
        assert pair[0].block_of == pair[1].block_of, f"seed={seed} turn={turn}"
        if turn == 900:
            for each in pair:
                each.policy.resize(110)
                each.free.extend(range(100, 110))
    assert python._hazards.num_events > 2 * TRAINED, "never left LRU"
    for block in range(100):
        assert python.history(block) == compiled.history(block)
        assert python.worth(block) == compiled.worth(block)


def test_what_comes_without_keys_of_the_sample_is_lru() -> None:
    """Nothing learned: the order is that of LRU, exactly."""
    clocks = ManualClock(), ManualClock()
    learner, lru = Chats(Adaptive(30, clocks[0]), clocks[0], 30, 5), Chats(LRU(30), clocks[1], 30, 5)
    for _ in range(120):
        learner.turn()
        lru.turn()
        assert set(learner.block_of) == set(lru.block_of)


def test_a_tier_below_judges_alike_and_takes_the_history_over() -> None:
    for upper, clock in judging():
        chats = Chats(upper, clock, 60, 3)
        for _ in range(400):
            chats.turn()
        lower = upper.below(8)
        lower.enter(ids(2), np.array([7], np.uint64))
        history = upper.history(11)
        lower.take_over(2, history)
        assert lower.history(2) == history
        assert lower.worth(2) == upper.worth(11) == upper.worth_of(history)
        clock.now += 3000.0
        assert lower.worth(2) != lower.worth_of(History(clock.now, history.uses, history.kind))
        lower.offer(ids(2))
        assert lower.victim() == 2


def judging() -> list[tuple[JudgingPolicy, ManualClock]]:
    first, second = ManualClock(), ManualClock()
    return [(Adaptive(60, first), first), (make_adaptive(60, second), second)]


def test_hazards_find_the_rate_they_are_shown_although_most_was_censored() -> None:
    hazards, generator = Hazards(), random.Random(1)
    node = hazards.node_of(NUM_KINDS - 1)
    for _ in range(4000):
        age, lost = generator.expovariate(0.05), generator.uniform(0.0, 20.0)
        hazards.watched(node, 0.0, min(age, lost))
        if age < lost:
            hazards.used_again(node, age)
    for _ in range(20):
        hazards.refresh_next()
    found = hazards._nodes[node].hazard[bin_of(2.0) : bin_of(15.0)]
    assert min(found) > 0.04
    assert max(found) < 0.06


def test_the_index_is_the_best_ratio_over_all_horizons() -> None:
    """And it rises with age where reuse is still to come."""
    hazards = Hazards()
    node = hazards.node_of(5)
    for _ in range(300):
        hazards.watched(node, 0.0, 100.0)
        hazards.used_again(node, 100.0)
        hazards.watched(node, 0.0, 1000.0)
        hazards.refresh_next()
    found = hazards._nodes[node]
    widths = [end - start for start, end in pairwise(_START)]
    for first in range(0, NUM_BINS, 5):
        best, alive, reuse, held = 0.0, 1.0, 0.0, 0.0
        for hazard, width in list(zip(found.hazard, widths, strict=True))[first:]:
            left = 1.0 / (1.0 + hazard * width)
            reuse += alive * (1.0 - left)
            held += alive * width * left
            alive *= left
            best = max(best, reuse / held)
        assert found.index[first] == pytest.approx(best, rel=1e-6)
    assert hazards.index(node, 100.0) > 2 * hazards.index(node, 5.0)
    assert hazards.index(node, 300.0) < hazards.index(node, 5.0)


@pytest.mark.parametrize("age", [0.0, 0.0009, 0.001, 0.75, 1.0, 1.49, 1.5, 3.0, 100.0, 1e5, 1e9])
def test_a_bin_holds_its_ages(age: float) -> None:
    number = bin_of(age)
    assert _START[number] <= age
    assert number == NUM_BINS - 1 or age < _START[number + 1]


def test_what_is_watched_and_remembered_is_bounded() -> None:
    sample, conversations, hazards = ReuseSample(1), Conversations(1), Hazards()
    for key in range(100_000):
        sample.watch(key, 0, float(key), 0.0, hazards, float(key))
        if key % 8 == 0:
            conversations.remember(key, Turn(1, float(key)))
    assert len(sample._item_of) == 4100
    assert sum(map(len, sample._bins)) == 4100
    assert len(conversations._place_of) == 4100
    assert conversations.find(99_992) == Turn(1, 99_992.0)
    assert conversations.find(8) is None


def test_a_learner_that_would_lose_keeps_to_lru() -> None:
    """All credit gone, strays go first and then what LRU evicts; with credit the choice is free."""
    credit = Credit()
    credit.count(found=0, lru_found=50, pages=100, num_blocks=100)
    assert credit.is_spent
    assert not credit.covers(1)
    credit = Credit()
    credit.count(found=60, lru_found=50, pages=100, num_blocks=100)
    assert not credit.is_spent
    assert credit.covers(100)


def test_conversations_that_come_back_beat_questions_asked_once() -> None:
    """What it is for: more is found than LRU finds, where some pages come back and most do not."""
    clocks = ManualClock(), ManualClock()
    learner, lru = Chats(make_adaptive(40, clocks[0]), clocks[0], 40, 9), Chats(LRU(40), clocks[1], 40, 9)
    for _ in range(1500):
        learner.turn()
        lru.turn()
    assert learner.num_found > 1.05 * lru.num_found
