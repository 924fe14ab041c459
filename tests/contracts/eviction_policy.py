"""What every eviction policy has to do, whatever order it keeps. A subclass gives ``make``.

Nothing here says *which* block goes first: that is each policy's own test.
"""

import random

import numpy as np
import pytest

from kvpager import InvariantError, KVLayout, open_cache
from kvpager.eviction.policy import EvictionPolicy, StopReason, Use
from tests.stamp import Stamp, T, block_counts, prefill


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int64)


def keys(*names: int) -> np.ndarray:
    return np.array(names, np.uint64)


def order(policy: EvictionPolicy, offered: set[int]) -> list[int]:
    """In which order blocks would go if each left in its turn; afterwards they are offered as before."""
    found = []
    while (block := policy.victim()) is not None:
        found.append(block)
        policy.withdraw(ids(block))
        assert len(found) <= len(offered)
    policy.offer(ids(*sorted(offered)))
    return found


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class EvictionPolicyContract:
    name: str
    batches = 3000  # random ones, for each seed
    requests = 150  # through a cache, for each seed

    def make(self, num_blocks: int, clock: ManualClock | None = None) -> EvictionPolicy:
        raise NotImplementedError

    def filled(self, num_blocks: int, *blocks: int) -> EvictionPolicy:
        """Each of ``blocks`` came, was let go and may go, one after the other."""
        policy = self.make(num_blocks)
        for block in blocks:
            self.bring(policy, block)
        return policy

    @staticmethod
    def bring(policy: EvictionPolicy, block: int, key: int | None = None) -> None:
        policy.enter(ids(block), keys(block if key is None else key))
        policy.release(ids(block), Use())
        policy.offer(ids(block))

    def test_it_has_a_name(self) -> None:
        assert self.make(4).name == self.name

    def test_an_empty_policy_has_no_victim(self) -> None:
        policy = self.make(4)
        for tell in (policy.hit, policy.offer, policy.withdraw, policy.leave):
            tell(ids())
        policy.enter(ids(), keys())
        policy.release(ids(), Use())
        assert policy.victim() is None
        policy.check(ids())

    def test_only_what_is_offered_can_go(self) -> None:
        policy = self.make(8)
        policy.enter(ids(5, 2, 7), keys(50, 20, 70))
        policy.release(ids(7, 2, 5), Use())
        assert policy.victim() is None
        policy.offer(ids(7))
        policy.check(ids(7))
        assert policy.victim() == 7
        policy.leave(ids(7))
        assert policy.victim() is None
        policy.offer(ids(2))
        assert policy.victim() == 2

    def test_asking_changes_nothing(self) -> None:
        policy = self.filled(8, 5, 2, 7)
        assert len({policy.victim() for _ in range(10)}) == 1
        policy.check(ids(2, 5, 7))

    def test_every_offered_block_goes_in_the_end_and_no_other(self) -> None:
        policy = self.filled(8, 5, 2, 7, 0)
        policy.withdraw(ids(2))
        gone = []
        while (block := policy.victim()) is not None:
            gone.append(block)
            policy.leave(ids(block))
        assert sorted(gone) == [0, 5, 7]
        policy.check(ids())

    def test_a_block_that_is_hit_may_not_go_until_it_is_offered_again(self) -> None:
        policy = self.filled(8, 5, 2)
        policy.hit(ids(5, 2))
        assert policy.victim() is None
        policy.check(ids())
        policy.release(ids(2, 5), Use())
        policy.offer(ids(2))
        assert policy.victim() == 2

    def test_a_live_block_may_be_hit(self) -> None:
        policy = self.make(8)
        policy.enter(ids(3), keys(3))
        policy.hit(ids(3))
        policy.release(ids(3), Use())
        policy.offer(ids(3))
        assert policy.victim() == 3

    def test_a_block_may_be_let_go_of_again_without_a_hit_between(self) -> None:
        """As when its priority changes while it is in use."""
        policy = self.make(64)
        for turn in range(20):
            policy.enter(ids(*range(40)), keys(*range(turn, turn + 40)))
            for start in (39, 20, 39, 0, 5):
                policy.release(ids(*range(start, -1, -1)), Use(priority=turn))
            policy.release(ids(*range(39, 20, -1)), Use())
            policy.offer(ids(*range(40)))
            policy.check(ids(*range(40)))
            gone = set()
            while (block := policy.victim()) is not None:
                gone.add(block)
                policy.leave(ids(block))
            assert gone == set(range(40))

    def test_to_be_held_for_a_while_does_not_change_the_order(self) -> None:
        policy = self.filled(8, 5, 2, 7, 0)
        before = order(policy, {5, 2, 7, 0})
        policy.withdraw(ids(before[0], before[2]))
        policy.offer(ids(before[2], before[0]))
        assert order(policy, {5, 2, 7, 0}) == before

    def test_offering_or_withdrawing_again_changes_nothing(self) -> None:
        policy = self.filled(8, 5, 2)
        before = policy.victim()
        policy.offer(ids(5, 2))
        policy.withdraw(ids(1, 6))
        assert policy.victim() == before
        policy.check(ids(2, 5))

    def test_it_keeps_no_hold_on_the_batch_it_was_given(self) -> None:
        policy = self.make(8)
        batch, names = ids(5, 2), keys(5, 2)
        policy.enter(batch, names)
        policy.release(batch, Use())
        policy.offer(batch)
        batch[:], names[:] = 0, 0
        policy.check(ids(2, 5))
        assert policy.victim() in (2, 5)

    def test_a_block_may_come_and_go_many_times(self) -> None:
        policy = self.make(4)
        for turn in range(2000):
            self.bring(policy, turn % 4, key=turn)
            assert policy.victim() == turn % 4
            policy.leave(ids(turn % 4))
        assert policy.victim() is None

    def test_content_that_comes_back_is_a_page_like_others(self) -> None:
        policy = self.make(4)
        for turn in range(300):
            self.bring(policy, turn % 4, key=turn % 7)
            policy.leave(ids(turn % 4))
        policy.check(ids())

    def test_a_moved_block_keeps_its_rank(self) -> None:
        policy = self.filled(8, 4, 5, 6, 7)
        before = order(policy, {4, 5, 6, 7})
        policy.move(5, 0)
        policy.move(7, 1)
        policy.check(ids(0, 1, 4, 6))
        assert order(policy, {4, 0, 6, 1}) == [{5: 0, 7: 1}.get(block, block) for block in before]
        self.bring(policy, 5, key=99)  # the old name is free for another block
        policy.check(ids(0, 1, 4, 5, 6))

    def test_a_block_moved_onto_itself_stays(self) -> None:
        policy = self.filled(8, 4, 5, 6, 7)
        before = order(policy, {4, 5, 6, 7})
        for block in (5, 4, 7):
            policy.move(block, block)
        policy.check(ids(4, 5, 6, 7))
        assert order(policy, {4, 5, 6, 7}) == before
        policy.hit(ids(4, 5, 6, 7))
        policy.release(ids(7, 6, 5, 4), Use())
        policy.offer(ids(7, 6, 5, 4))
        policy.check(ids(4, 5, 6, 7))

    def test_a_live_block_that_moves_keeps_what_is_known_of_it(self) -> None:
        policy = self.make(8)
        policy.enter(ids(6), keys(6))
        policy.move(6, 1)
        policy.hit(ids(1))
        policy.release(ids(1), Use())
        policy.offer(ids(1))
        policy.check(ids(1))
        assert policy.victim() == 1

    def test_a_resize_keeps_the_order(self) -> None:
        policy = self.filled(8, 3, 0, 2)
        before = order(policy, {3, 0, 2})
        policy.resize(4)
        assert order(policy, {3, 0, 2}) == before
        policy.resize(32)
        self.bring(policy, 31)
        policy.check(ids(0, 2, 3, 31))
        assert sorted(order(policy, {0, 2, 3, 31})) == [0, 2, 3, 31]

    def test_check_finds_a_missing_and_an_extra_block(self) -> None:
        policy = self.filled(8, 1, 2)
        policy.check(ids(1, 2))
        for wrong in (ids(1), ids(1, 2, 3), ids(1, 3)):
            with pytest.raises(InvariantError):
                policy.check(wrong)

    @pytest.mark.parametrize("seed", range(3))
    def test_random_batches_agree_with_sets(self, seed: int) -> None:
        generator, clock, size = random.Random(seed), ManualClock(), 16
        policy = self.make(size, clock)
        live, cached, offered = set[int](), set[int](), set[int]()
        for turn in range(self.batches):
            where = f"{self.name} seed={seed} turn={turn}"
            clock.now += generator.choice([0.0, 0.1, 30.0])
            verb = generator.choice(
                ["enter", "enter", "release", "hit", "offer", "offer", "withdraw", "evict", "leave", "move", "resize"]
            )
            some = generator.sample(range(size), generator.randint(1, min(4, size)))
            if verb == "enter":
                fresh = [block for block in some if block not in live | cached]
                policy.enter(ids(*fresh), keys(*(generator.randrange(40) for _ in fresh)))
                live.update(fresh)
            elif verb == "release":
                batch = [block for block in some if block in live]
                use = Use(generator.randrange(900), generator.random(), generator.choice(list(StopReason)))
                policy.release(ids(*batch), use)
                live.difference_update(batch)
                cached.update(batch)
            elif verb == "hit":
                batch = [block for block in some if block in live | cached]
                policy.hit(ids(*batch))
                cached.difference_update(batch)
                offered.difference_update(batch)
                live.update(batch)
            elif verb == "offer":
                batch = [block for block in some if block in cached]
                policy.offer(ids(*batch))
                offered.update(batch)
            elif verb == "withdraw":
                policy.withdraw(ids(*some))
                offered.difference_update(some)
            elif verb == "evict":
                block = policy.victim()
                assert (block in offered) if offered else (block is None), where
                if block is not None:
                    policy.leave(ids(block))
                    cached.remove(block)
                    offered.remove(block)
            elif verb == "leave":
                batch = [block for block in some if block in live | cached]
                policy.leave(ids(*batch))
                for each in (live, cached, offered):
                    each.difference_update(batch)
            elif verb == "move" and live | cached and len(live | cached) < size:
                source = generator.choice(sorted(live | cached))
                target = generator.choice([block for block in range(size) if block not in live | cached])
                policy.move(source, target)
                for each in (live, cached, offered):
                    if source in each:
                        each.remove(source)
                        each.add(target)
            elif verb == "resize":
                size = max(live | cached, default=0) + generator.randint(1, 6)
                policy.resize(size)
            policy.check(np.array(sorted(offered), np.int64))
            assert (policy.victim() in offered) if offered else (policy.victim() is None), where

    @pytest.mark.parametrize("seed", range(2))
    def test_under_it_a_cache_never_loses_the_middle_of_a_prefix(self, seed: int) -> None:
        """Whatever order the policy keeps: what is found of a chain is always its head, with the right bytes."""
        generator = random.Random(seed)
        layout = KVLayout(1, 1, 4, dtype="float32", page_size=2)
        with open_cache(layout, num_blocks=10, eviction=self.name) as cache:
            stamp = Stamp(cache)
            prompts = [T(base, base + 7) for base in (1, 100, 200)] + [[*T(1, 4), *T(50, 53)]]
            for turn in range(self.requests):
                seq = prefill(stamp, generator.choice(prompts))
                stamp.verify(seq)
                seq.free()
                block_counts(cache)
                cache.check()
                for prompt in prompts:
                    found = cache.lookup([*prompt, 0])
                    parents = [cache.index.parent(node) for node in found.nodes[1:]]
                    assert list(found.nodes[:-1]) == parents, f"{self.name} seed={seed} turn={turn}"
