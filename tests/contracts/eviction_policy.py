"""What every eviction policy has to do, whatever order it keeps. A subclass gives ``make``.

Nothing here says *which* block goes first: that is each policy's own test.
"""

import random

import numpy as np
import pytest

from kvpager import InvariantError, KVLayout, open_cache
from kvpager.eviction.policy import EvictionPolicy
from tests.stamp import Stamp, T, block_counts, prefill


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


def order(policy: EvictionPolicy, count: int = 1000) -> list[int]:
    return policy.victims(count).tolist()


class EvictionPolicyContract:
    name: str

    def make(self, num_blocks: int) -> EvictionPolicy:
        raise NotImplementedError

    def test_it_has_a_name(self) -> None:
        assert self.make(4).name == self.name

    def test_an_empty_policy_has_no_victims(self) -> None:
        policy = self.make(4)
        assert order(policy) == []
        policy.remove(ids())
        policy.add(ids())
        policy.check(ids())

    def test_it_offers_exactly_the_cached_blocks(self) -> None:
        policy = self.make(8)
        policy.add(ids(5, 2))
        policy.add(ids(7))
        policy.check(ids(2, 5, 7))
        assert sorted(order(policy)) == [2, 5, 7]
        policy.remove(ids(2))
        policy.check(ids(5, 7))
        assert sorted(order(policy)) == [5, 7]

    def test_fewer_victims_are_the_first_of_more(self) -> None:
        policy = self.make(8)
        for batch in (ids(5, 2), ids(7, 0, 1), ids(3)):
            policy.add(batch)
        whole = order(policy)
        assert [order(policy, count) for count in range(7)] == [whole[:count] for count in range(7)]

    def test_asking_changes_nothing(self) -> None:
        policy = self.make(8)
        policy.add(ids(5, 2, 7))
        policy.remove(ids(5))
        first = order(policy)
        assert [order(policy) for _ in range(10)] == [first] * 10
        policy.check(ids(2, 7))

    def test_it_keeps_no_hold_on_the_batch_it_was_given(self) -> None:
        policy = self.make(8)
        batch = ids(5, 2)
        policy.add(batch)
        batch[:] = 0
        assert sorted(order(policy)) == [2, 5]

    def test_a_block_may_come_and_go_many_times(self) -> None:
        policy = self.make(4)
        for turn in range(5000):
            policy.add(ids(turn % 4))
            policy.check(ids(turn % 4))
            policy.remove(ids(turn % 4))
        assert order(policy) == []

    def test_a_moved_block_keeps_its_rank(self) -> None:
        policy = self.make(8)
        policy.add(ids(4, 5, 6))
        policy.add(ids(7))
        before = order(policy)
        policy.move(5, 0)
        policy.move(7, 1)
        assert order(policy) == [{5: 0, 7: 1}.get(block, block) for block in before]
        policy.check(ids(0, 1, 4, 6))
        policy.add(ids(5))  # the old name is free for another block
        policy.check(ids(0, 1, 4, 5, 6))

    def test_a_resize_keeps_the_order(self) -> None:
        policy = self.make(8)
        policy.add(ids(3, 0))
        policy.add(ids(2))
        before = order(policy)
        policy.resize(4)
        assert order(policy) == before
        policy.resize(32)
        policy.add(ids(31))
        assert sorted(order(policy)) == [0, 2, 3, 31]
        policy.check(ids(0, 2, 3, 31))

    def test_check_finds_a_missing_and_an_extra_block(self) -> None:
        policy = self.make(8)
        policy.add(ids(1, 2))
        policy.check(ids(1, 2))
        for wrong in (ids(1), ids(1, 2, 3), ids(1, 3)):
            with pytest.raises(InvariantError):
                policy.check(wrong)

    @pytest.mark.parametrize("seed", range(3))
    def test_random_batches_agree_with_a_set(self, seed: int) -> None:
        generator = random.Random(seed)
        policy, size, cached = self.make(16), 16, set()
        for turn in range(3000):
            where = f"{self.name} seed={seed} turn={turn}"
            verb = generator.choice(["add", "add", "remove", "victims", "move", "resize"])
            chosen = generator.sample(range(size), generator.randint(1, 4))
            if verb == "add":
                batch = [block for block in chosen if block not in cached]
                policy.add(ids(*batch))
                cached.update(batch)
            elif verb == "remove":
                batch = [block for block in chosen if block in cached]
                policy.remove(ids(*batch))
                cached.difference_update(batch)
            elif verb == "victims":
                found = order(policy, generator.randint(1, 20))
                assert len(found) == len(set(found)), where
                assert set(found) <= cached, where
            elif verb == "move" and cached and len(cached) < size:
                source = generator.choice(sorted(cached))
                target = generator.choice([block for block in range(size) if block not in cached])
                policy.move(source, target)
                cached = cached - {source} | {target}
            elif verb == "resize":
                size = max(cached, default=0) + generator.randint(1, 6)
                policy.resize(size)
            policy.check(np.array(sorted(cached), np.int64))
            assert sorted(order(policy)) == sorted(cached), where

    @pytest.mark.parametrize("seed", range(2))
    def test_under_it_a_cache_never_loses_the_middle_of_a_prefix(self, seed: int) -> None:
        """Whatever order the policy offers: what is found of a chain is always its head, with the right bytes."""
        generator = random.Random(seed)
        layout = KVLayout(1, 1, 4, dtype="float32", page_size=2)
        with open_cache(layout, num_blocks=10, eviction=self.name) as cache:
            stamp = Stamp(cache)
            prompts = [T(base, base + 7) for base in (1, 100, 200)] + [[*T(1, 4), *T(50, 53)]]
            for turn in range(150):
                seq = prefill(stamp, generator.choice(prompts))
                stamp.verify(seq)
                seq.free()
                block_counts(cache)
                for prompt in prompts:
                    found = cache.lookup([*prompt, 0])
                    parents = [cache.index.parent(node) for node in found.nodes[1:]]
                    assert list(found.nodes[:-1]) == parents, f"{self.name} seed={seed} turn={turn}"
