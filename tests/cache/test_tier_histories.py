"""Pages that move between the tiers of a judging policy: which of them are kept, and what is known of them then.

The policy of these tests (tests/tiers/judging.py) knows beforehand what a page is worth: the first byte of its key.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpager import DiskTier, HostTier, KVLayout, PagedCache, RemoteTier, Scope, Watermarks, open_cache
from kvpager.eviction.policy import History
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey, TierKind
from tests.stamp import Stamp, T, prefill
from tests.tiers import judging

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)
DISK_PAGES = 8


@pytest.fixture(autouse=True)
def known_worth() -> Iterator[None]:
    with judging.registered():
        yield


def opened(*tiers: object, **options: object) -> PagedCache:
    options = {"eviction": "known_worth", "write_back": "back", "num_blocks": 4, "fingerprint": b"w"} | options
    return open_cache(LAYOUT, tiers=tiers, **options)  # type: ignore[arg-type]


def disk(folder: Path) -> DiskTier:
    """Room for a few pages."""
    return DiskTier(folder / "kv", 512 * DISK_PAGES + (8 << 10), direct=False)


def serve(cache: PagedCache, prompt: int) -> ContentKey:
    """A prompt of one page that nothing hangs under; returns what the page is called below."""
    seq = prefill(Stamp(cache), T(10 * prompt, 10 * prompt + 4))
    assert cache.lower is not None
    [block] = [int(each) for table in seq.tables for each in table.snapshot()[:1]]
    name = cache.lower.page(block).key
    seq.free()
    cache.check()
    return name


def drop_all(cache: PagedCache) -> None:
    assert cache.lower is not None
    cache._reclaimer.make_free(cache.pool.num_blocks)
    assert cache.lower.settle(60)
    cache.check()


def kept(tier: LowerTier) -> list[int]:
    """What the pages of a tier are worth."""
    return sorted(page.key[0] for page in tier.pages())


def tiers(cache: PagedCache) -> tuple[LowerTier, ...]:
    assert cache.lower is not None
    return cache.lower.migration.tiers


def device_history(cache: PagedCache, name: ContentKey) -> History | None:
    assert cache.lower is not None
    blocks = cache.index.all_blocks().tolist()
    [found] = [page.history for page in map(cache.lower.page, blocks) if page.key == name]
    return found


def test_a_tier_keeps_what_is_worth_most_and_the_rest_is_dropped() -> None:
    with opened(HostTier(pages=6)) as cache:
        names = [serve(cache, prompt) for prompt in range(40)]
        drop_all(cache)
        moves, [host] = cache.statistics().migration, cache.statistics().tiers
        assert kept(tiers(cache)[0]) == sorted(name[0] for name in names)[-6:]
        assert moves is not None
        assert moves.not_worth_keeping == host.declined == 40 - host.stored.pages > 10
        assert (moves.lost, moves.refused, host.refused) == (0, 0, 0)
        assert moves.demoted == {TierKind.HOST: host.stored.pages}
        assert f"{moves.not_worth_keeping} not worth keeping, 0 lost" in str(cache.statistics())


def test_without_a_judge_every_page_goes_down() -> None:
    """The control."""
    with opened(HostTier(pages=6), eviction="lru") as cache:
        names = [serve(cache, prompt) for prompt in range(40)]
        drop_all(cache)
        [host] = cache.statistics().tiers
        assert (host.stored.pages, host.declined) == (40, 0)
        assert kept(tiers(cache)[0]) == sorted(name[0] for name in names[-6:])


def test_background_reclaim_drops_at_once_what_no_tier_wants(tmp_path: Path) -> None:
    with opened(disk(tmp_path), num_blocks=16, watermarks=Watermarks(2, 6, 8)) as cache:
        for prompt in range(60):
            serve(cache, prompt)
            assert cache.lower is not None
            assert cache.lower.settle(60)
        [store], moves = cache.statistics().tiers, cache.statistics().migration
        assert moves is not None
        assert store.evicted > 0, "the disk was full"
        assert moves.not_worth_keeping > 10
        assert moves.lost == cache.statistics().reclaim.direct == 0
        dropped = store.stored.pages + moves.not_worth_keeping
        assert dropped == cache.statistics().reclaim.background


def test_what_the_host_declines_is_offered_to_the_disk_and_then_to_the_remote(tmp_path: Path) -> None:
    chain = [HostTier(pages=4), disk(tmp_path), RemoteTier("memory:///")]
    with opened(*chain, num_blocks=80) as cache:
        assert cache.lower is not None
        names = []
        for prompt in range(60):
            names.append(serve(cache, prompt))
            [block] = [each for each in cache.index.all_blocks().tolist() if cache.lower.page(each).key == names[-1]]
            assert cache.lower.write_down([block], leaving=True) == [block]
            assert cache.lower.settle(60)
        host, store, remote = tiers(cache)
        moves = cache.statistics().migration
        assert moves is not None
        assert (moves.not_worth_keeping, moves.lost) == (0, 0), "a remote store takes whatever comes"
        assert min(moves.demoted[kind] for kind in (TierKind.HOST, TierKind.DISK, TierKind.REMOTE)) > 0
        assert host.statistics().declined > 0
        assert store.statistics().declined > 0
        assert all(any(tier.contains(name) for tier in (host, store, remote)) for name in names)
        assert kept(host) == sorted(name[0] for name in names)[-4:]
        assert min(kept(store)) > min(name[0] for name in names)


def test_uses_are_not_forgotten_on_the_way_down_and_up() -> None:
    with opened(HostTier(pages=8)) as cache:
        name = serve(cache, 1)
        serve(cache, 1)
        serve(cache, 1)
        before = device_history(cache, name)
        assert before is not None
        assert before.uses == 3
        drop_all(cache)
        assert tiers(cache)[0].history(name) == before
        seq = cache.sequence(T(10, 14))
        assert seq.prefix_by_tier[TierKind.HOST] == 4
        seq.free()
        after = device_history(cache, name)
        assert after is not None
        assert (after.uses, after.kind) == (4, before.kind)
        assert after.last_used > before.last_used
        drop_all(cache)
        assert tiers(cache)[0].history(name) == after, "the copy that had stayed below knows it as well"
        assert cache.statistics().tiers[0].stored.pages == 1


def test_a_page_that_came_up_is_as_old_as_its_last_use_until_it_is_used() -> None:
    with opened(HostTier(pages=8)) as cache:
        name = serve(cache, 1)
        drop_all(cache)
        known = tiers(cache)[0].history(name)
        assert cache.lower is not None
        match = cache.lower.find(array("i", T(10, 14)), Scope(), 4)
        assert match is not None
        assert cache.lower.promote(match) is not None
        assert cache.lower.settle(60)
        assert device_history(cache, name) == known is not None
        cache.check()


def test_written_through_a_page_is_taken_unseen_and_judged_below_once_it_leaves_the_device() -> None:
    with opened(HostTier(pages=6), write_back="through") as cache:
        assert cache.lower is not None
        for prompt in range(40):
            name = serve(cache, prompt)
            assert cache.lower.settle(60)
        [host] = cache.statistics().tiers
        assert host.stored.pages == 40
        assert host.declined == 0, "nobody judges what is in use"
        for _ in range(3):
            serve(cache, 39)
        known = device_history(cache, name)
        drop_all(cache)
        assert tiers(cache)[0].history(name) == known
        assert known is not None
        assert known.uses == 4


def test_pages_found_on_disk_are_worth_what_the_policy_says_of_new_ones(tmp_path: Path) -> None:
    with opened(disk(tmp_path)) as cache:
        name = serve(cache, 1)
        serve(cache, 1)
    with opened(disk(tmp_path)) as cache:
        history = tiers(cache)[0].history(name)
        assert history is not None
        assert (history.uses, history.kind) == (1, name[0])
        seq = cache.sequence(T(10, 14))
        assert seq.prefix_by_tier[TierKind.DISK] == 4
        seq.free()
        after = device_history(cache, name)
        assert after is not None
        assert after.uses == 2
