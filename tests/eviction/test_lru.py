"""LRU: the contract of all policies, and the exact order."""

import random
from collections import OrderedDict

import pytest

from kvpager.eviction.lru import LRU
from kvpager.eviction.policy import Use
from tests.contracts.eviction_policy import EvictionPolicyContract, ManualClock, ids, order


class TestLRU(EvictionPolicyContract):
    name = "lru"

    def make(self, num_blocks: int, clock: ManualClock | None = None) -> LRU:
        return LRU(num_blocks)

    def test_the_longest_unused_goes_first_and_a_batch_keeps_its_order(self) -> None:
        policy = self.make(8)
        policy.release(ids(5, 2), Use())
        policy.release(ids(7), Use())
        policy.offer(ids(2, 5, 7))
        assert order(policy, {2, 5, 7}) == [5, 2, 7]
        policy.hit(ids(5))
        policy.release(ids(5), Use())
        policy.offer(ids(5))
        assert order(policy, {2, 5, 7}) == [2, 7, 5]

    def test_a_parent_counts_from_its_own_last_use(self) -> None:
        policy = self.make(8)
        policy.release(ids(1, 0), Use())  # page 1 hangs under page 0
        policy.release(ids(7), Use())
        policy.offer(ids(1, 7))
        assert policy.victim() == 1
        policy.leave(ids(1))
        policy.offer(ids(0))
        assert policy.victim() == 0

    @pytest.mark.parametrize("seed", range(5))
    def test_the_order_is_that_of_an_ordered_dict(self, seed: int) -> None:
        generator = random.Random(seed)
        policy, model = self.make(12), OrderedDict[int, None]()
        for turn in range(2000):
            chosen = generator.sample(range(12), generator.randint(1, 5))
            if generator.random() < 0.5:
                policy.release(ids(*chosen), Use())
                policy.offer(ids(*chosen))
                for block in chosen:
                    model.pop(block, None)
                    model[block] = None
            else:
                policy.leave(ids(*chosen))
                for block in chosen:
                    model.pop(block, None)
            assert order(policy, set(model)) == list(model), f"seed={seed} turn={turn}"
