"""What a policy remembers is bounded by a multiple of its blocks, however much content comes by."""

import random

import numpy as np
import pytest

from kvpager.eviction.make import POLICIES, make_policy
from kvpager.eviction.policy import NO_USE
from tests.contracts.eviction_policy import ManualClock
from tests.eviction.tree import TreeCache

NUM_BLOCKS = 64
NAMES = [name for name in POLICIES if name != "adaptive"]  # which has tests of its own
ITEMS_PER_BLOCK = 40  # numbers in lists, dictionaries and arrays; W-TinyLFU's counters are most of the largest figure


def num_items(found: object, seen: set[int] | None = None) -> int:
    """Of all containers that hang on an object."""
    seen = set() if seen is None else seen
    if id(found) in seen or isinstance(found, str | int | float | type):
        return 0
    seen.add(id(found))
    if isinstance(found, np.ndarray | bytearray):
        return len(found)
    within: list[object] = []
    if isinstance(found, dict):
        within += found.values()
    elif hasattr(found, "__iter__"):
        within += found
    counted = len(within)
    within += getattr(found, "__dict__", {}).values()
    return counted + sum(num_items(each, seen) for each in within)


@pytest.mark.parametrize("name", NAMES)
def test_twenty_times_as_many_keys_as_blocks(name: str) -> None:
    clock, generator = ManualClock(), random.Random(0)
    policy = make_policy(name, NUM_BLOCKS, clock)
    cache = TreeCache(policy, NUM_BLOCKS)
    most = 0
    for start in range(0, 20 * NUM_BLOCKS, 4):
        clock.now += 1.0
        known = range(max(0, start - 150), start)
        cache.replay([[page] for page in (*generator.sample(known, min(12, len(known))), *range(start, start + 4))])
        if start % 100 == 0:
            most = max(most, num_items(policy))
    assert most <= ITEMS_PER_BLOCK * NUM_BLOCKS, f"{most / NUM_BLOCKS:.1f} items a block"


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_are_used_again_and_again_and_never_asked_for(name: str) -> None:
    clock = ManualClock()
    policy = make_policy(name, NUM_BLOCKS, clock)
    blocks = np.arange(NUM_BLOCKS)
    policy.enter(blocks, blocks.astype(np.uint64))
    for turn in range(200):
        clock.now += 1.0
        some = np.random.default_rng(turn).permutation(NUM_BLOCKS)[: NUM_BLOCKS // 2]
        policy.release(some, NO_USE)
        policy.offer(some)
        policy.withdraw(some[::3])
        policy.offer(some[::3])
        policy.hit(some[::2])
    assert num_items(policy) <= ITEMS_PER_BLOCK * NUM_BLOCKS


def test_containers_are_counted() -> None:
    class Keeper:
        def __init__(self) -> None:
            self.numbers = [0] * 10
            self.by_name = {"a": [1, 2], "b": [self.numbers]}  # the same list counts once
            self.bytes = bytearray(5)

    assert num_items(Keeper()) == 10 + 2 + (2 + 1) + 5
