"""Making blocks free: by watermark in the background, exactly as many as lacking in a call, leaves first."""

import pytest

from kvpager import ConfigError, OutOfBlocks, Watermarks, open_cache
from tests.cache.caches import LAYOUT, MIXED, WINDOWED, opened
from tests.stamp import T, block_counts, prefill, run_step


@pytest.mark.parametrize("marks", [(1, 0, 2), (0, 3, 2), (-1, 0, 0), (2, 1, 0)])
def test_watermarks_are_in_order(marks: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="0 <= min <= low <= high"):
        Watermarks(*marks)
    Watermarks(0, 0, 0)
    Watermarks(1, 2, 3)


def test_watermarks_come_from_a_share_of_the_pool() -> None:
    assert Watermarks.from_threshold(0.1, 100) == Watermarks(5, 10, 15)
    assert Watermarks.from_threshold(0.0, 100) == Watermarks()
    for wrong in (-0.1, 0.5, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="eviction_threshold"):
            Watermarks.from_threshold(wrong, 100)


def test_direct_reclaim_drops_as_many_as_are_lacking() -> None:
    with opened(num_blocks=8) as stamp:
        prefill(stamp, T(1, 16)).free()
        prefill(stamp, T(50, 57)).free()
        assert block_counts(stamp.cache) == {"free": 2, "used": 0, "cached": 6, "moving": 0}
        run_step(stamp, [stamp.cache.sequence(T(80, 90))])
        assert block_counts(stamp.cache) == {"free": 0, "used": 3, "cached": 5, "moving": 0}
        reclaim = stamp.cache.statistics().reclaim
        assert (reclaim.direct, reclaim.background) == (1, 0)
        assert stamp.cache.lookup([*T(1, 16), 0]).num_tokens == 12, "the leaf of the older chain went"


def test_background_reclaim_fills_up_to_the_high_watermark_when_free_falls_below_low() -> None:
    with opened(num_blocks=12, watermarks=Watermarks(1, 3, 6)) as stamp:
        prefill(stamp, T(1, 16)).free()
        prefill(stamp, T(50, 65)).free()
        assert block_counts(stamp.cache) == {"free": 4, "used": 0, "cached": 8, "moving": 0}
        assert stamp.cache.statistics().reclaim.background == 0
        seq = prefill(stamp, T(90, 97))  # 2 are left: below low
        assert block_counts(stamp.cache) == {"free": 6, "used": 2, "cached": 4, "moving": 0}
        assert stamp.cache.statistics().reclaim.background == 4
        assert stamp.cache.min_watermark == 1
        stamp.verify(seq)


def test_background_reclaim_never_touches_live_pages() -> None:
    with opened(num_blocks=8, watermarks=Watermarks(2, 4, 8)) as stamp:
        seq = prefill(stamp, T(1, 24))
        assert block_counts(stamp.cache) == {"free": 2, "used": 6, "cached": 0, "moving": 0}
        stamp.verify(seq)


def test_a_call_that_can_not_be_served_drops_nothing() -> None:
    with opened(num_blocks=8) as stamp:
        prefill(stamp, T(1, 16)).free()
        live = prefill(stamp, T(50, 60))
        with pytest.raises(OutOfBlocks):
            stamp.cache.step({stamp.cache.sequence(T(80, 103)): 24})
        assert stamp.cache.lookup([*T(1, 16), 0]).num_tokens == 16
        shown = stamp.cache.statistics()
        assert shown.reclaim.direct == 0
        assert shown.allocation_failures == 1
        stamp.verify(live)


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWED, MIXED], ids=["full", "windowed", "mixed"])
def test_every_cached_block_can_be_had(layout: object) -> None:
    with opened(layout, num_blocks=24) as stamp:
        for base in (1, 100, 200):
            for tail in (0, 1):
                prefill(stamp, [*T(base, base + 7), *T(base + 20 + tail, base + 27 + tail)]).free()
                stamp.cache.check()
        counts = block_counts(stamp.cache)
        assert counts["used"] == 0
        assert counts["cached"] > 12
        seq = stamp.cache.sequence()
        pages = 24 // layout.num_groups
        with stamp.cache.step({seq: 4 * pages}):
            assert block_counts(stamp.cache)["used"] == 24
        stamp.cache.check()


def test_the_last_used_prefix_stays_longest() -> None:
    with opened(num_blocks=6) as stamp:
        for base in (1, 50, 100):
            prefill(stamp, T(base, base + 7)).free()
        stamp.cache.sequence([*T(1, 8), 9]).free()  # used again
        prefill(stamp, T(200, 207)).free()
        found = [stamp.cache.lookup([*T(base, base + 7), 0]).num_tokens for base in (1, 50, 100)]
        assert found == [8, 0, 8]


def test_an_unknown_policy_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"choose one of.*lru"):
        open_cache(LAYOUT, num_blocks=4, eviction="mru")
