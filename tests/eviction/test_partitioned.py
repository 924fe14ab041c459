"""Partitions by priority and tenant: the contract over every chosen policy, who goes first, and what it keeps."""

import random
from collections import Counter

import pytest

from kvpager.eviction.make import POLICIES, make_policy
from kvpager.eviction.partitioned import MAX_PARTITIONS, Partitioned
from kvpager.eviction.policy import Use
from tests.contracts.eviction_policy import EvictionPolicyContract, ManualClock, ids, keys, order


def partitioned(num_blocks: int, name: str = "lru", clock: ManualClock | None = None) -> Partitioned:
    now = clock or ManualClock()
    return Partitioned(num_blocks, lambda size: make_policy(name, size, now))


def bring(policy: Partitioned, block: int, priority: int = 50, tenant: str = "") -> None:
    policy.enter(ids(block), keys(block))
    policy.charge([block], [tenant])
    policy.release(ids(block), Use(priority=priority, tenant=tenant))
    policy.offer(ids(block))


class TestPartitionedLRU(EvictionPolicyContract):
    name = "lru"
    test_under_it_a_cache_never_loses_the_middle_of_a_prefix = None  # it opens its cache by name; see test_O15.py

    def make(self, num_blocks: int, clock: ManualClock | None = None) -> Partitioned:
        return partitioned(num_blocks, self.name, clock)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_the_contract_in_partitions(name: str) -> None:
    class Contract(EvictionPolicyContract):
        def make(self, num_blocks: int, clock: ManualClock | None = None) -> Partitioned:
            return partitioned(num_blocks, name, clock)

    contract = Contract()
    contract.name = name
    contract.batches = 400
    contract.test_random_batches_agree_with_sets(7)
    contract.test_every_offered_block_goes_in_the_end_and_no_other()
    contract.test_a_moved_block_keeps_its_rank()


def test_the_lowest_priority_goes_first_whatever_was_used_last() -> None:
    policy = partitioned(8)
    for block, priority in ((0, 100), (1, 50), (2, 0), (3, 50), (4, 0)):
        bring(policy, block, priority)
    assert order(policy, {0, 1, 2, 3, 4}) == [2, 4, 1, 3, 0]


def test_among_equals_the_tenant_goes_that_has_most_for_its_weight() -> None:
    policy = partitioned(16)
    for block, tenant in enumerate("aaaabbbcc"):
        bring(policy, block, tenant=tenant)
    gone = []
    for _ in range(6):
        block = policy.victim()
        assert block is not None
        gone.append(policy.tenant_of(block))
        policy.leave(ids(block))
    assert gone[0] == "a"
    assert Counter(gone) == {"a": 3, "b": 2, "c": 1}  # one each is left: max-min
    policy = partitioned(16)
    policy.set_weight("a", 4.0)
    for block, tenant in enumerate("aaaabbbcc"):
        bring(policy, block, tenant=tenant)
    assert policy.tenant_of(policy.victim() or 0) == "b"


def test_a_tenant_pays_for_live_blocks_and_whoever_used_a_block_last_pays() -> None:
    policy = partitioned(8)
    policy.enter(ids(3), keys(3))
    policy.charge([3], ["a"])
    assert (policy.used("a"), policy.victim_of("a")) == (1, None)
    policy.release(ids(3), Use(tenant="b"))
    policy.offer(ids(3))
    assert (policy.used("a"), policy.used("b"), policy.victim_of("b")) == (0, 1, 3)
    policy.leave(ids(3))
    assert policy.tenants() == []
    policy.check(ids())


def test_another_priority_without_a_use_keeps_what_may_go_and_what_may_not() -> None:
    policy = partitioned(8)
    for block in (0, 1):
        bring(policy, block)
    policy.withdraw(ids(1))
    policy.assign(0, 90, "")
    policy.assign(1, 0, "")
    policy.check(ids(0))
    policy.offer(ids(1))
    assert order(policy, {0, 1}) == [1, 0]


def test_a_policy_that_was_at_work_goes_on_with_its_order() -> None:
    first = make_policy("lru", 8, ManualClock())
    first.release(ids(5, 2, 7), Use())
    first.offer(ids(5, 7))
    policy = Partitioned(8, lambda size: make_policy("lru", size, ManualClock()), first, [5, 2, 7], [5, 7])
    policy.check(ids(5, 7))
    bring(policy, 0, tenant="a")
    assert order(policy, {0, 5, 7}) == [5, 7, 0]
    policy.offer(ids(2))
    assert order(policy, {0, 5, 7, 2}) == [5, 2, 7, 0]


def test_what_it_keeps_is_bounded_however_many_tenants_and_priorities_come() -> None:
    policy, generator = partitioned(64), random.Random(0)
    for turn in range(6000):
        block = generator.randrange(64)
        policy.leave(ids(block))
        bring(policy, block, generator.randrange(101), f"tenant {turn}")
        if turn % 500 == 0:
            policy.check(ids(*[b for b, offered in enumerate(policy._is_offered) if offered]))
    assert len(policy._parts) <= MAX_PARTITIONS + 101
    assert sum(len(part.block_of) for part in policy._parts.values()) <= 4 * 64 + 16 * (MAX_PARTITIONS + 101)
    for turn in range(64):  # a partition that was large gives its room up
        policy.leave(ids(turn))
    for tenant in ("x", "y", "z") * 40:
        for block in range(64):
            policy.leave(ids(block))
            bring(policy, block, tenant=tenant)
    assert len(policy.tenants()) == 1
    policy.check(ids(*range(64)))
