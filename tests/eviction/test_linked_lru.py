"""LinkedLRU: the contract of all policies, and the same order as LRU."""

import random

from kvpager.eviction.linked_lru import LinkedLRU
from kvpager.eviction.lru import LRU
from tests.contracts.eviction_policy import EvictionPolicyContract, ids, order


class TestLinkedLRU(EvictionPolicyContract):
    name = "lru"

    def make(self, num_blocks: int) -> LinkedLRU:
        return LinkedLRU(num_blocks)

    def test_its_order_is_that_of_lru(self) -> None:
        generator, both = random.Random(0), (LinkedLRU(16), LRU(16))
        for _ in range(2000):
            some = ids(*generator.sample(range(16), generator.randint(1, 4)))
            for policy in both:
                policy.remove(some)
            if generator.random() < 0.6:
                for policy in both:
                    policy.add(some)
            assert order(both[0]) == order(both[1])
