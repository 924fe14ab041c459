"""The journey of a page through the tiers, bounded."""

from kvpager import HostTier, KVLayout, open_cache
from kvpager.cache.page_log import PageEvent, PageLog, What
from kvpager.metrics.journeys import Journeys
from kvpager.types import ContentKey, PageReason, TierKind
from tests.stamp import Stamp, T, prefill

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)


def test_a_page_goes_down_and_comes_back() -> None:
    now = 0.0
    with open_cache(LAYOUT, num_blocks=4, tiers=[HostTier(pages=8)]) as cache:
        journeys, log = Journeys(lambda seconds: 1e9 + seconds), PageLog(cache, lambda: now)
        log.subscribe(journeys)
        for first in (1, 21, 1):
            prefill(Stamp(cache), T(first, first + 9)).free()
            assert cache.lower is not None
            assert cache.lower.settle(60)
            now += 10.0
        log.drain()
        stops = journeys.of(cache.content_keys(T(1, 10))[1])
        assert [(stop.tier, stop.what) for stop in stops] == [
            ("device", "stored: published"),
            ("device", "released"),
            ("host", "stored: copied"),
            ("device", "removed: evicted"),
            ("host", "loaded"),
            ("device", "stored: arrived"),
            ("device", "hit"),
            ("device", "released"),
        ]
        assert [stop.time for stop in stops] == sorted(stop.time for stop in stops)
        assert 1e9 <= stops[0].time < stops[-1].time < 1e9 + 100


def test_both_bounds_hold() -> None:
    journeys = Journeys(float, most_pages=3, most_events=4)
    keys = [ContentKey(bytes([each]) * 32) for each in range(5)]

    def take(number: int, time: float, what: What = What.HIT, reason: PageReason | None = None) -> None:
        journeys.take([PageEvent(time, what, TierKind.DEVICE, keys[number], reason=reason)])

    for time in range(10):
        take(0, time)
    assert [stop.time for stop in journeys.of(keys[0])] == [0, 7, 8, 9]
    take(0, 99.0, What.STORED, PageReason.FOUND)  # told anew: nothing has happened
    assert journeys.of(keys[0])[-1].time == 9
    for number in (1, 2, 0, 3):
        take(number, 20.0)
    assert [bool(journeys.of(key)) for key in keys] == [True, False, True, True, False]
    take(4, 21.0, What.STORED, PageReason.FOUND)
    assert [stop.what for stop in journeys.of(keys[4])] == ["stored: found"]
