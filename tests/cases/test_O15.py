"""Open case O-15: what is evicted."""

import random

import pytest

from kvpager import KVLayout, open_cache
from tests.stamp import Stamp, T, block_counts, prefill, run_step

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=4, dtype="float32", page_size=4)
CHURN = 10_000


def test_a_a_chain_loses_its_tail_and_keeps_its_head() -> None:
    with open_cache(LAYOUT, num_blocks=3) as cache:
        stamp = Stamp(cache)
        prefill(stamp, T(1, 12)).free()
        assert block_counts(cache)["cached"] == 3
        prefill(stamp, [500])
        assert block_counts(cache) == {"free": 0, "used": 1, "cached": 2, "moving": 0}
        assert cache.lookup([*T(1, 12), 13]).num_tokens == 8
        stamp.verify(cache.sequence([*T(1, 12), 13]))


@pytest.mark.parametrize("seed", [0])
def test_b_a_running_sequence_keeps_its_blocks_however_much_churns_around_it(seed: int) -> None:
    generator = random.Random(seed)
    with open_cache(LAYOUT, num_blocks=8) as cache:
        stamp = Stamp(cache)
        running = prefill(stamp, T(1, 16))
        blocks = running.tables[0].mapped_blocks().tolist()
        allocated = number = 0
        while allocated < CHURN:
            pages = generator.randint(1, 4)
            number += 1
            other = cache.sequence([1000 + number] * (4 * pages))
            with cache.step({other: 4 * pages - other.length}) as step:
                assert not set(step.batch.tables[0][0][:pages].tolist()) & set(blocks), f"seed={seed}, {number}"
                cache.arena.fill(step.batch.tables[0][0][:pages], number % 251)
            other.free()
            allocated += pages
            if number % 50 == 0:
                block_counts(cache)
                stamp.verify(running)
        assert running.tables[0].mapped_blocks().tolist() == blocks
        stamp.verify(running)
        assert cache.statistics().reclaim.direct > CHURN // 2  # the control: there was pressure


def test_c_a_request_never_evicts_the_prefix_it_was_just_promised() -> None:
    with open_cache(LAYOUT, num_blocks=6) as cache:
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


def test_d_cached_blocks_are_given_up_before_anything_is_refused() -> None:
    with open_cache(LAYOUT, num_blocks=8) as cache:
        stamp = Stamp(cache)
        for base in (1, 100):
            prefill(stamp, T(base, base + 15)).free()
        assert block_counts(cache)["cached"] == 8
        seq = prefill(stamp, T(500, 531))
        assert block_counts(cache) == {"free": 0, "used": 8, "cached": 0, "moving": 0}
        stamp.verify(seq)
