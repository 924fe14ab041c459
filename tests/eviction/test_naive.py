"""Every policy gives the victims of a naive model of itself, one by one, on random traces over random prefix trees."""

import random

import pytest

from kvpager.eviction.arc import ARC
from kvpager.eviction.fifo import FIFO
from kvpager.eviction.gdsf import GDSF
from kvpager.eviction.lfu import LFU
from kvpager.eviction.lru import LRU
from kvpager.eviction.lru_k import LRUK
from kvpager.eviction.make import POLICIES
from kvpager.eviction.policy import EvictionPolicy, Use
from kvpager.eviction.priority import Priority
from kvpager.eviction.s3fifo import S3FIFO
from kvpager.eviction.sieve import SIEVE
from kvpager.eviction.slru import SLRU
from kvpager.eviction.w_tinylfu import WTinyLFU
from kvpager.eviction.window import Window
from tests.contracts.eviction_policy import ManualClock
from tests.eviction.naive.arc import NaiveARC
from tests.eviction.naive.frequency import NaiveGDSF, NaiveLFU, NaiveWindow
from tests.eviction.naive.lru_k import NaiveLRUK
from tests.eviction.naive.model import Model
from tests.eviction.naive.queues import NaiveFIFO, NaiveLRU, NaivePriority
from tests.eviction.naive.s3fifo import NaiveS3FIFO
from tests.eviction.naive.sieve import NaiveSIEVE
from tests.eviction.naive.slru import NaiveSLRU
from tests.eviction.naive.w_tinylfu import NaiveWTinyLFU
from tests.eviction.tree import Prompt, TreeCache, random_prompts

SIDE_BY_SIDE = {
    "fifo": (FIFO, NaiveFIFO),
    "lru": (LRU, NaiveLRU),
    "lfu": (LFU, NaiveLFU),
    "lru_k": (LRUK, NaiveLRUK),
    "slru": (SLRU, NaiveSLRU),
    "arc": (ARC, NaiveARC),
    "s3fifo": (S3FIFO, NaiveS3FIFO),
    "sieve": (SIEVE, NaiveSIEVE),
    "w_tinylfu": (WTinyLFU, NaiveWTinyLFU),
    "gdsf": (GDSF, NaiveGDSF),
    "priority": (Priority, NaivePriority),
}
SECONDS = 20.0


def make_both(name: str, num_blocks: int, clock: ManualClock) -> tuple[EvictionPolicy, Model]:
    if name == "window":
        return Window(num_blocks, clock, SECONDS), NaiveWindow(num_blocks, clock, SECONDS)
    policy, model = SIDE_BY_SIDE[name]
    return policy(num_blocks), model(num_blocks)


def replay(name: str, seed: int, capacity: int, *, count: int, at_once: int, longest: int = 6) -> TreeCache:
    """Up to ``at_once`` requests are running; blocks are renamed and held for a while now and then."""
    generator, clock, spare = random.Random(seed), ManualClock(), 3
    policy, model = make_both(name, capacity + spare, clock)
    cache = TreeCache(policy, capacity, capacity + spare, model)
    running: list[Prompt] = []
    for prompt in random_prompts(generator, count, longest):
        clock.now += generator.choice([0.0, 0.5, 3.0])
        while len(running) >= at_once or (running and generator.random() < 0.3):
            cache.finish(running.pop(generator.randrange(len(running))), random_use(generator))
        running.append(cache.start(prompt))
        if generator.random() < 0.1:
            cache.move(generator.choice(list(cache.block_of)), generator.choice(cache.free))
        if cache.offered and generator.random() < 0.1:
            cache.hold_for_a_while(generator.choice(sorted(cache.offered)))
    cache.check()
    return cache


def random_use(generator: random.Random) -> Use:
    return Use(generator.randrange(900), generator.random(), priority=generator.choice([0, 50, 50, 90]))


def test_all_have_a_model() -> None:
    assert {*SIDE_BY_SIDE, "window"} == set(POLICIES) - {"adaptive"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, "window"])
def test_one_request_after_the_other(name: str, seed: int) -> None:
    cache = replay(name, seed, capacity=[8, 25, 60][seed], count=400, at_once=1)
    assert len(cache.victims) > 150


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, "window"])
def test_requests_that_run_together(name: str, seed: int) -> None:
    cache = replay(name, seed, capacity=[10, 25, 60][seed], count=400, at_once=4)
    assert len(cache.victims) > 150


@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, "window"])
def test_pages_without_prefixes(name: str) -> None:
    """The whole queue is leaves: what the papers describe."""
    cache = replay(name, seed=5, capacity=20, count=800, at_once=1, longest=1)
    assert len(cache.victims) > 150


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(100, 140))
@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, "window"])
def test_long_traces(name: str, seed: int) -> None:
    replay(name, seed, capacity=random.Random(seed).randint(8, 150), count=2000, at_once=1 + seed % 5)


class YoungestFirst(NaiveLRU):
    def victim(self, offered: object) -> int | None:
        return super().victim(set(offered) - {super().victim(offered)})  # type: ignore[call-overload]


def test_a_wrong_order_is_found() -> None:
    cache = TreeCache(LRU(4), 4, model=YoungestFirst(4))
    with pytest.raises(AssertionError, match="victim 0 is page 0; the model has 1"):
        cache.replay([(page,) for page in range(8)])
