"""Open case O-15: what is evicted, by every policy, plain and beside retentions."""

import random

import numpy as np
import pytest

from kvpager import KVLayout, PagedCache, Retention, Scope, open_cache
from kvpager.eviction.make import POLICIES
from tests.contracts.eviction_policy import ManualClock
from tests.stamp import Stamp, T, block_counts, prefill, run_step

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4)
CHURN = 10_000


def ranked(cache: PagedCache) -> None:
    """From now on priorities and tenants count."""
    cache.retention.set_quota("somebody", "50%")


@pytest.mark.parametrize("is_ranked", [False, True], ids=["plain", "ranked"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_a_chain_loses_its_tail_and_keeps_its_head(policy: str, is_ranked: bool) -> None:
    with open_cache(LAYOUT, num_blocks=3, eviction=policy) as cache:
        if is_ranked:
            ranked(cache)
        stamp = Stamp(cache)
        prefill(stamp, T(1, 12)).free()
        assert block_counts(cache)["cached"] == 3
        prefill(stamp, [500])
        assert block_counts(cache) == {"free": 0, "used": 1, "cached": 2, "moving": 0}
        assert cache.lookup([*T(1, 12), 13]).num_tokens == 8
        stamp.verify(cache.sequence([*T(1, 12), 13]))


@pytest.mark.parametrize("policy", POLICIES)
def test_b_what_runs_and_what_is_pinned_stays_however_much_churns_around_it(policy: str) -> None:
    """All of them with retentions beside, so that blocks of others are pinned, ranked, and run out meanwhile."""
    generator, clock = random.Random(0), ManualClock()
    churn = CHURN if policy == "lru" else CHURN // 20
    with open_cache(LAYOUT, num_blocks=14, eviction=policy, clock=clock, pinned_share=0.4) as cache:
        stamp = Stamp(cache)
        cache.retention.set_quota("b", "30%")
        pinned = prefill(stamp, T(101, 112), retain=[Retention(pin=True)])
        pinned.free()
        running = prefill(stamp, T(1, 16))
        blocks = running.tables[0].mapped_blocks().tolist()
        kept = np.flatnonzero(cache.pool.kept).tolist()
        allocated = number = 0
        while allocated < churn:
            pages = generator.randint(1, 4)
            number += 1
            wishes = [
                Retention(priority=generator.randrange(101), seconds=generator.choice([None, 1.0])),
                Retention(generator.randrange(4), ttl=generator.choice([0.0, 2.0])),
                Retention(0, 4, pin=True, seconds=generator.choice([0.5, 1.5])),
            ]
            other = cache.sequence(
                [1000 + number] * (4 * pages),
                scope=Scope(salt=generator.choice("ab")),
                retain=generator.sample(wishes, generator.choice([0, 0, 0, 1, 2])),
            )
            with cache.step({other: 4 * pages - other.length}) as step:
                taken = set(step.batch.tables[0][0][:pages].tolist())
                assert not taken & {*blocks, *kept}, f"{policy}, {number}"
                cache.arena.fill(step.batch.tables[0][0][:pages], number % 251)
            other.free()
            clock.now += generator.choice([0.0, 0.3])
            allocated += pages
            if number % 50 == 0:
                block_counts(cache)
                stamp.verify(running)
            if number % 200 == 0:
                cache.check()
        assert running.tables[0].mapped_blocks().tolist() == blocks
        stamp.verify(running)
        again = cache.sequence(T(101, 113))
        assert again.prefix_tokens == 12
        stamp.verify(again)
        shown = cache.statistics()
        assert shown.retention is not None
        assert shown.reclaim.direct + shown.retention.dropped_by_ttl > churn // 2  # the control: there was pressure
        assert shown.retention.dropped_by_ttl > 0
        assert shown.retention.dropped_by_quota > 0


@pytest.mark.parametrize("is_ranked", [False, True], ids=["plain", "ranked"])
@pytest.mark.parametrize("policy", POLICIES)
def test_c_a_request_never_evicts_the_prefix_it_was_just_promised(policy: str, is_ranked: bool) -> None:
    with open_cache(LAYOUT, num_blocks=6, eviction=policy) as cache:
        if is_ranked:
            ranked(cache)
        stamp = Stamp(cache)
        prefill(stamp, T(1, 16)).free()  # X, the older
        prefill(stamp, T(201, 208)).free()  # Y, the newer
        assert block_counts(cache)["cached"] == 6
        seq = cache.sequence([*T(1, 16), *T(301, 308)])
        assert seq.prefix_tokens == 16
        run_step(stamp, [seq])
        stamp.verify(seq)
        assert cache.lookup([*T(201, 208), 0]).num_tokens == 0
        assert block_counts(cache) == {"free": 0, "used": 6, "cached": 0, "moving": 0}


@pytest.mark.parametrize("policy", POLICIES)
def test_d_cached_blocks_are_given_up_before_anything_is_refused(policy: str) -> None:
    """Pinned ones too, where nothing else is left."""
    with open_cache(LAYOUT, num_blocks=8, eviction=policy) as cache:
        stamp = Stamp(cache)
        for base in (1, 100):
            prefill(stamp, T(base, base + 15), retain=[Retention(pin=True, priority=100)]).free()
        assert block_counts(cache)["cached"] == 8
        seq = prefill(stamp, T(500, 531))
        assert block_counts(cache) == {"free": 0, "used": 8, "cached": 0, "moving": 0}
        stamp.verify(seq)
