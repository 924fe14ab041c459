"""Tiers that hold no page that came up from them: when a copy goes, and that none goes too early."""

from array import array
from pathlib import Path

import pytest

from kvpager import ConfigError, DiskTier, HostTier, KVLayout, PagedCache, Scope, open_cache
from kvpager.cache.lower_pages import Promotion
from kvpager.config.tiers import TierOptions
from kvpager.types import TierKind
from tests.engine.tiers import StepMover
from tests.stamp import Stamp, T, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)
PROMPT = T(1, 18)  # four pages, and what can't be found


def opened(*tiers: object, mover: StepMover | None = None, **options: object) -> PagedCache:
    options = {"num_blocks": 64, "write_back": "back", "fingerprint": b"w", "mover": mover or StepMover()} | options
    return open_cache(LAYOUT, tiers=tiers, **options)  # type: ignore[arg-type]


def serve(cache: PagedCache) -> dict[TierKind, int]:
    """The prompt from its beginning to its end, its bytes compared; where it was found."""
    seq = prefill(Stamp(cache), PROMPT)
    Stamp(cache).verify(seq)
    found = dict(seq.prefix_by_tier)
    seq.free()
    assert cache.lower is not None
    assert cache.lower.settle(60)
    cache.check()
    return found


def drop_all(cache: PagedCache) -> None:
    cache._reclaimer.make_free(cache.pool.num_blocks)
    assert cache.index.num_entries == 0
    cache.check()


def pages(cache: PagedCache) -> list[int]:
    """In each tier."""
    return [tier.pages for tier in cache.statistics().tiers]


def promote(cache: PagedCache) -> Promotion:
    assert cache.lower is not None
    match = cache.lower.find(array("i", PROMPT), Scope(), len(PROMPT) - 1)
    assert match is not None
    promotion = cache.lower.promote(match)
    assert promotion is not None
    return promotion


@pytest.mark.parametrize(("exclusive", "stored", "left"), [(True, 12, 0), (False, 4, 4)])
def test_what_each_mode_costs(exclusive: bool, stored: int, left: int) -> None:
    """Three rounds of a prompt of four pages that come up and leave again."""
    with opened(HostTier(pages=16, exclusive=exclusive)) as cache:
        serve(cache)
        for _ in range(3):
            drop_all(cache)
            assert pages(cache) == [4]
            assert serve(cache) == {TierKind.HOST: 16, TierKind.DEVICE: 0}
            assert pages(cache) == [left]
        moves, [host] = cache.statistics().migration, cache.statistics().tiers
        assert moves is not None
        assert (moves.demoted, moves.promoted) == ({TierKind.HOST: stored}, {TierKind.HOST: 12})
        assert host.stored.pages == stored
        assert moves.page_bytes == LAYOUT.block_stride


def test_an_exclusive_tier_adds_its_room_to_that_of_the_device() -> None:
    """Eight prompts in turn, and room for five of them on the device and for four in the host."""
    found = {}
    for exclusive in (True, False):
        with opened(HostTier(pages=16, exclusive=exclusive), num_blocks=21) as cache:
            for _ in range(3):
                for number in range(8):
                    prefill(Stamp(cache), T(100 * number, 100 * number + 16)).free()
            found[exclusive] = sum(cache.statistics().prefix.by_tier.values())
            cache.check()
    assert found[True] == 2 * 8 * 16, "everything is found again"
    assert found[False] < found[True]


def test_nothing_is_dropped_below_before_the_device_has_it() -> None:
    mover = StepMover()
    with opened(HostTier(pages=16, exclusive=True), mover=mover) as cache:
        serve(cache)
        drop_all(cache)
        mover.holds = lambda lane: lane == "host load"
        promotion = promote(cache)
        assert cache.lower is not None
        cache.lower.collect()
        assert pages(cache) == [4]
        mover.holds = lambda lane: False
        cache.lower.collect()
        assert promotion.is_done
        assert (cache.index.num_entries, pages(cache)) == (4, [0])
        cache.check()


def test_pages_that_arrive_after_the_device_forgot_their_prompt_stay_below() -> None:
    with opened(HostTier(pages=16, exclusive=True)) as cache:
        serve(cache)
        drop_all(cache)
        promotion = promote(cache)
        cache.clear_prefix()
        assert cache.lower is not None
        cache.lower.collect()
        assert promotion.is_done
        assert (cache.index.num_entries, pages(cache)) == (0, [4])
        assert serve(cache) == {TierKind.HOST: 16, TierKind.DEVICE: 0}


def test_of_a_load_that_failed_only_what_arrived_is_dropped() -> None:
    """The third page is damaged: the fourth can't be reached without it, and stays where it is."""
    with opened(HostTier(pages=16, exclusive=True)) as cache:
        serve(cache)
        drop_all(cache)
        promotion = promote(cache)
        host = cache.lower.migration.tiers[0]  # type: ignore[union-attr]
        slot = host._book._slot_of[promotion.load.pages[2].key]  # type: ignore[attr-defined]
        host._arena.blocks[slot][5] ^= 1  # type: ignore[attr-defined]
        cache.lower.collect()  # type: ignore[union-attr]
        assert promotion.is_done
        assert cache.index.num_entries == 2
        assert [page.key for page in host.pages()] == [promotion.load.pages[3].key]
        assert serve(cache)[TierKind.DEVICE] == 8
        drop_all(cache)
        assert serve(cache) == {TierKind.HOST: 16, TierKind.DEVICE: 0}


def test_two_that_load_the_same_pages_both_get_them() -> None:
    with opened(HostTier(pages=16, exclusive=True)) as cache:
        serve(cache)
        drop_all(cache)
        one, other = promote(cache), promote(cache)
        cache.lower.collect()  # type: ignore[union-attr]
        assert one.is_done
        assert other.is_done
        assert pages(cache) == [0]
        assert serve(cache) == {TierKind.DEVICE: 16}


def test_each_tier_has_its_own_mode(tmp_path: Path) -> None:
    """Pages come up from the host and stay on disk; without the host they come up from the disk."""
    tiers = HostTier(pages=16, exclusive=True), DiskTier(tmp_path / "kv", "16 MiB")
    with opened(*tiers) as cache:
        serve(cache)
    with opened(*tiers) as cache:
        assert serve(cache) == {TierKind.DISK: 16, TierKind.DEVICE: 0}
        drop_all(cache)
        assert pages(cache) == [0, 4], "the disk has them, so they need no copy"
    with opened(DiskTier(tmp_path / "kv", "16 MiB", exclusive=True)) as cache:
        assert serve(cache) == {TierKind.DISK: 16, TierKind.DEVICE: 0}
        assert pages(cache) == [0]
    with opened(DiskTier(tmp_path / "kv", "16 MiB")) as cache:
        assert serve(cache) == {TierKind.DISK: 16, TierKind.DEVICE: 0}, "closing wrote them again"


def test_what_is_used_again_is_copied_ahead_to_tiers_that_may_have_it_too(tmp_path: Path) -> None:
    options = {"write_back": "selective", "max_moving": "1 MiB"}
    with opened(HostTier(pages=16, exclusive=True), **options) as cache:
        serve(cache)
        serve(cache)
        assert pages(cache) == [0]
    with opened(HostTier(pages=16), **options) as cache:
        serve(cache)
        serve(cache)
        assert pages(cache) == [4]
    with opened(HostTier(pages=16, exclusive=True), DiskTier(tmp_path / "kv", "16 MiB"), **options) as cache:
        serve(cache)
        serve(cache)
        assert pages(cache) == [0, 4]
        assert cache.statistics().migration.refused == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("tier", "write_back", "fault"),
    [
        (HostTier(pages=4, exclusive=True), "through", "host tier can't be exclusive.*'back' or 'selective'"),
        (DiskTier("kv", "1 MiB", exclusive=True), "through", "disk tier can't be exclusive.*'back' or 'selective'"),
        (DiskTier("kv", "1 MiB", exclusive=True, read_only=True), "back", "read only.*leave one out"),
    ],
)
def test_what_can_not_be_exclusive_is_refused(tier: TierOptions, write_back: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        opened(tier, write_back=write_back)
    opened(HostTier(pages=4, exclusive=True), write_back="selective").close()
