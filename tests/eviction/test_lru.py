"""LRU: the contract of all policies, and the exact order."""

import random
from collections import OrderedDict

import pytest

from kvpager import InvariantError
from kvpager.eviction.lru import LRU
from tests.contracts.eviction_policy import EvictionPolicyContract, ids, order


class TestLRU(EvictionPolicyContract):
    name = "lru"

    def make(self, num_blocks: int) -> LRU:
        return LRU(num_blocks)

    def test_the_longest_unused_goes_first_and_a_batch_keeps_its_order(self) -> None:
        policy = self.make(8)
        policy.add(ids(5, 2))
        policy.add(ids(7))
        assert order(policy) == [5, 2, 7]
        policy.remove(ids(5))
        policy.add(ids(5))
        assert order(policy) == [2, 7, 5]

    def test_the_log_stays_short_however_often_blocks_are_used_again(self) -> None:
        policy = self.make(4)
        for _ in range(20_000):
            policy.add(ids(0, 1, 2))
            policy.remove(ids(2, 1, 0))
        assert policy._logged <= 2 * 4 + 1024 + 3
        assert sum(len(blocks) for blocks, _ in policy._log) == policy._logged

    def test_check_finds_a_log_that_lost_a_block(self) -> None:
        policy = self.make(8)
        policy.add(ids(1, 2))
        policy._log.clear()
        with pytest.raises(InvariantError, match="log lost a cached block"):
            policy.check(ids(1, 2))

    @pytest.mark.parametrize("seed", range(5))
    def test_the_order_is_that_of_an_ordered_dict(self, seed: int) -> None:
        generator = random.Random(seed)
        policy, model = self.make(12), OrderedDict[int, None]()
        for turn in range(4000):
            chosen = generator.sample(range(12), generator.randint(1, 5))
            verb = generator.choice(["add", "remove", "move"])
            if verb == "add":
                batch = [block for block in chosen if block not in model]
                policy.add(ids(*batch))
                model.update(dict.fromkeys(batch))
            elif verb == "remove":
                batch = [block for block in chosen if block in model]
                policy.remove(ids(*batch))
                for block in batch:
                    del model[block]
            elif model and len(model) < 12:
                source = generator.choice(list(model))
                target = next(block for block in range(12) if block not in model)
                policy.move(source, target)
                model = OrderedDict((target if block == source else block, None) for block in model)
            assert order(policy) == list(model), f"seed={seed} turn={turn} {verb}"
            few = generator.randint(0, 4)
            assert order(policy, few) == list(model)[:few], f"seed={seed} turn={turn} {verb}"
