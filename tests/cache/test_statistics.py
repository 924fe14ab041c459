"""Plain numbers that add up, faults counted and timed by the injected clock."""

import random

import pytest

from kvpager import HostTier, OutOfBlocks
from kvpager.cache.statistics import CacheStatistics
from kvpager.cache.tier_lines import tier_lines
from kvpager.tiers.migration_statistics import MigrationStatistics
from kvpager.tiers.tier import TierStatistics, TierUsage, TransferCounts
from kvpager.types import FaultKind, TierKind
from tests.cache.caches import LAYOUT, MIXED, opened
from tests.stamp import Stamp, T, block_counts, prefill, run_step


class FakeClock:
    """Every reading is a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_every_kind_of_fault_is_counted() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))  # 3 demand
        hit = stamp.cache.sequence([*T(1, 6), 99])  # 2 minor: a whole page and the head of another
        run_step(stamp, [hit])  # 1 copy
        twin = seq.fork()
        twin.append(50)
        run_step(stamp, [twin])  # 1 copy
        pages = {kind: count.pages for kind, count in stamp.cache.statistics().faults.items()}
        assert pages == {FaultKind.DEMAND: 3, FaultKind.MINOR: 2, FaultKind.MAJOR: 0, FaultKind.COPY_ON_WRITE: 2}


def test_faults_are_timed_by_the_injected_clock_and_by_no_other() -> None:
    clock = FakeClock()
    with opened(clock=clock) as stamp:
        prefill(stamp, T(1, 10))
        seconds = {kind: count.seconds for kind, count in stamp.cache.statistics().faults.items()}
        assert seconds == {**dict.fromkeys(FaultKind, 0.0), FaultKind.DEMAND: 1.0}  # one handling, one tick inside it
        seq = stamp.cache.sequence([*T(1, 6), 99])
        assert stamp.cache.statistics().faults[FaultKind.MINOR].seconds == 1.0
        run_step(stamp, [seq])
        assert stamp.cache.statistics().faults[FaultKind.COPY_ON_WRITE].seconds == 1.0
        read = clock.now
        seq.append(1)
        stamp.cache.statistics()
        stamp.cache.lookup(T(1, 10))
        assert clock.now == read, "without a fault nobody looks at the clock"


def test_a_step_without_a_fault_counts_none() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 9))
        before = stamp.cache.statistics().faults
        seq.append(50)
        run_step(stamp, [seq])
        assert stamp.cache.statistics().faults == before


def test_a_fault_that_found_no_block_is_not_counted() -> None:
    with opened(num_blocks=2) as stamp:
        seq = stamp.cache.sequence(T(1, 12))
        with pytest.raises(OutOfBlocks):
            stamp.cache.step({seq: 12})
        assert stamp.cache.statistics().faults[FaultKind.DEMAND].pages == 0


def test_waste_is_the_slots_that_no_token_fills_and_shared_blocks_count_once() -> None:
    with opened(MIXED, num_blocks=32) as stamp:
        one = prefill(stamp, T(1, 6))
        assert stamp.cache.statistics().waste_tokens == 2 * 2  # two groups
        twin = one.fork()
        assert stamp.cache.statistics().waste_tokens == 2 * 2
        assert stamp.cache.statistics().shared_blocks == 4
        twin.append(50)
        run_step(stamp, [twin])
        assert stamp.cache.statistics().waste_tokens == 2 * 2 + 2 * 1
        prefill(stamp, T(100, 103))
        assert stamp.cache.statistics().waste_tokens == 2 * 2 + 2 * 1


def test_a_page_that_a_cut_fork_ends_in_is_full_where_the_other_has_gone_past_it() -> None:
    with opened(num_blocks=32) as stamp:
        one = stamp.cache.sequence()  # by hand, so that no page is findable
        one.write(0, *stamp.kv(T(1, 10), 0, 10))
        cut, as_long = one.fork(), one.fork()
        cut.truncate(5)  # inside a page that is full for the others
        assert stamp.cache.statistics().waste_tokens == 2  # of the last page of the others
        as_long.truncate(9)
        assert stamp.cache.statistics().waste_tokens == 2
        one.free()
        assert stamp.cache.statistics().waste_tokens == 3
        as_long.free()
        assert stamp.cache.statistics().waste_tokens == 3  # the control: nobody has gone past it any more


def test_prompt_tokens_are_computed_tokens_and_hits() -> None:
    with opened(num_blocks=32) as stamp:
        for base, length in ((1, 10), (1, 14), (50, 9), (1, 14), (50, 3)):
            prefill(stamp, T(base, base + length - 1)).free()
        found = stamp.cache.statistics()
        assert found.prefix.lookups == 5
        assert found.prefix.prompt_tokens == 10 + 14 + 9 + 14 + 3
        assert found.prefix.hit_tokens + found.computed_tokens == found.prefix.prompt_tokens
        assert found.prefix.hit_rate == found.prefix.hit_tokens / 50
        assert found.prefix.hit_tokens > 0


def test_a_new_cache_shows_zeros() -> None:
    with opened() as stamp:
        found = stamp.cache.statistics()
        assert (found.tokens, found.sequences, found.waste_tokens, found.table_bytes) == (0, 0, 0, 0)
        assert found.prefix.hit_rate == 0.0
        assert found.blocks.utilisation == 0.0
        assert found.block_bytes == LAYOUT.block_bytes


def test_statistics_read_well() -> None:
    with opened() as stamp:
        seq = prefill(stamp, T(1, 10))
        seq.fork()
        text = str(stamp.cache.statistics())
        assert "3 used + 0 cached + 0 moving + 13 free = 16" in text
        assert "2 sequences, 20 tokens, 3 shared blocks, 2 empty slots" in text
        assert "0 of 10 prompt tokens found (0%), 2 blocks findable" in text
        assert "demand 3  minor 0  major 0  copy_on_write 0" in text


def test_the_device_tier_shows_the_pool_in_bytes() -> None:
    with opened() as stamp:
        prefill(stamp, T(1, 10)).free()
        seq = prefill(stamp, T(50, 53))
        (tier,) = stamp.cache.tiers
        usage = tier.usage()
        assert usage.kind is TierKind.DEVICE
        assert (usage.blocks, usage.free, usage.used, usage.cached, usage.moving) == (16, 13, 1, 2, 0)
        assert usage.capacity_bytes == 16 * LAYOUT.block_stride
        assert usage.used_bytes == 3 * LAYOUT.block_stride
        tier.check()
        seq.free()


@pytest.mark.parametrize("seed", range(3))
def test_counters_never_go_down_and_blocks_always_add_up(seed: int) -> None:
    """R8, I1, I28: read after every call of a random run."""
    generator = random.Random(seed)
    with opened(num_blocks=12) as stamp:
        live, before = [], None
        for turn in range(300):
            try:
                if generator.random() < 0.6 or not live:
                    base = generator.choice([1, 1, 50])
                    live.append(prefill(stamp, T(base, base + generator.randint(0, 12))))
                else:
                    live.pop(generator.randrange(len(live))).free()
            except OutOfBlocks:
                stamp.cache.free(list(stamp.cache.sequences.values()))
                live.clear()
            block_counts(stamp.cache)
            now = stamp.cache.statistics()
            assert now.tokens == sum(seq.length for seq in live)
            assert now.sequences == len(live)
            assert 0.0 <= now.blocks.utilisation <= 1.0
            assert now.prefix.hit_tokens <= now.prefix.prompt_tokens
            if before is not None:
                where = f"seed={seed} turn={turn}"
                assert all(now.faults[kind].pages >= before.faults[kind].pages for kind in FaultKind), where
                assert now.prefix.prompt_tokens >= before.prefix.prompt_tokens, where
                assert now.prefix.hit_tokens >= before.prefix.hit_tokens, where
                assert now.computed_tokens >= before.computed_tokens, where
                assert now.reclaim.direct >= before.reclaim.direct, where
                assert now.deduplicated_blocks >= before.deduplicated_blocks, where
            before = now


def _fill_and_return(stamp: Stamp) -> CacheStatistics:
    """The first prompt goes down when others need its blocks, and comes back."""
    cache = stamp.cache
    prefill(stamp, T(1, 16)).free()
    assert cache.lower is not None
    cache.lower.settle(60)
    prefill(stamp, T(101, 132)).free()
    cache.lower.settle(60)
    prefill(stamp, T(1, 17)).free()
    return cache.statistics()


def test_the_tiers_are_shown_and_their_hits_add_up() -> None:
    with opened(num_blocks=9, tiers=[HostTier(pages=40)]) as stamp:
        now = _fill_and_return(stamp)
        hits = now.prefix.by_tier
        assert hits[TierKind.HOST] > 0
        assert sum(hits.values()) == now.prefix.hit_tokens
        assert now.prefix.prompt_tokens == now.prefix.hit_tokens + now.computed_tokens
        [host] = now.tiers
        assert host.usage.used_bytes <= host.usage.capacity_bytes
        lines = str(now).splitlines()
        header, row, moves = lines[5:]
        assert header.split() == ["tiers", "pages", "held", "of", "hits", "stored", "loaded", "failed", "state"]
        assert row.startswith(f"host {host.pages:>9}")
        assert f"{hits[TierKind.HOST]}  {host.stored.pages} pages, " in row
        assert f"  {host.loaded.pages} pages, " in row
        assert row.endswith("  0  ok")
        assert moves.startswith("moves    0 B under way in 0 jobs, ")
        assert len({line.index("state") for line in [header]} | {row.index("ok")}) == 1, (
            "columns stand under each other"
        )


def test_a_reading_stays_as_it_was_read() -> None:
    with opened(num_blocks=9, tiers=[HostTier(pages=40)]) as stamp:
        before = stamp.cache.statistics()
        shown = str(before)
        _fill_and_return(stamp)
        assert str(before) == shown
        assert str(stamp.cache.statistics()) != shown


def test_what_went_wrong_in_a_tier_has_a_line_of_its_own() -> None:
    usage = TierUsage(TierKind.REMOTE, 0, 0, 4, 4, 0, 0, 0)
    counts = TransferCounts(1, 2048, 0.5, 3)
    tier = TierStatistics("remote", "failing: timeout", usage, 1, counts, counts, 0, 5, 2, {"timeout": 3})
    moves = MigrationStatistics("int8 (lossy)", 1024, 1, 7, 1, 2, 0.25, 0.0)
    assert tier_lines([tier], {}, moves) == [
        "tiers    pages  held  of  hits  stored                   loaded                   failed  state",
        "remote       1   0 B   -     0  1 page, 2 KiB in 0.50 s  1 page, 2 KiB in 0.50 s       6  failing: timeout",
        "remote   5 refused, 2 quarantined, 3 timeout",
        "moves    1 KiB under way in 1 job, 7 refused, 1 lost, 2 late; waited 0.25 s for I/O; pages are int8 (lossy)",
    ]
