"""Lifetimes, idle times and gaps between uses of pages, from what the page log says."""

import pytest

from kvpager import HostTier, KVLayout, open_cache
from kvpager.cache.page_log import PageEvent, PageLog, What
from kvpager.metrics.page_life import BOUNDS, PageLife, SecondsHistogram
from kvpager.types import ContentKey, PageReason, TierKind
from tests.stamp import Stamp, T, prefill

DEVICE, HOST = TierKind.DEVICE, TierKind.HOST


def key(number: int) -> ContentKey:
    return ContentKey(number.to_bytes(4, "little") * 8)


def event(time: float, what: What, number: int = 0, tier: TierKind = DEVICE, reason: PageReason | None = None):
    return PageEvent(time, what, tier, None if what is What.CLEARED else key(number), reason=reason)


def total(histogram: SecondsHistogram) -> tuple[int, float]:
    return sum(histogram.counts), histogram.sum


def test_a_page_from_its_first_moment_to_its_last() -> None:
    life = PageLife()
    life.take([
        event(0.0, What.STORED), event(10.0, What.RELEASED), event(15.0, What.HIT), event(18.0, What.RELEASED),
        event(40.0, What.HIT), event(41.0, What.RELEASED), event(100.0, What.REMOVED, reason=PageReason.EVICTED),
    ])  # fmt: skip
    device = life.tiers[DEVICE]
    assert total(device.lifetime) == (1, 100.0)
    assert total(device.idle) == (1, 59.0)
    assert total(device.reuse_gap) == (1, 22.0)
    assert device.idle.counts[next(at for at, bound in enumerate(BOUNDS) if bound >= 59.0)] == 1


def test_only_pages_that_made_room_were_idle() -> None:
    life = PageLife()
    life.take([event(0, What.STORED, tier=HOST), event(5, What.REMOVED, tier=HOST, reason=PageReason.WRONG)])
    assert total(life.tiers[HOST].lifetime) == (1, 5.0)
    assert total(life.tiers[HOST].idle) == (0, 0.0)


def test_cleared_pages_do_not_count() -> None:
    life = PageLife()
    life.take([event(0, What.STORED), event(1, What.CLEARED), event(2, What.REMOVED, reason=PageReason.EVICTED)])
    assert life.tiers == {}


def test_many_pages_are_sampled_and_the_counts_stay_right() -> None:
    life = PageLife(most=100)
    numbers = [each * 2654435761 % 2**32 for each in range(2000)]
    life.take([event(0.0, What.STORED, number) for number in numbers])
    assert life._num_lives <= 100
    assert life.one_in >= 16
    life.take([event(8.0, What.REMOVED, number, reason=PageReason.EVICTED) for number in numbers])
    count, seconds = total(life.tiers[DEVICE].lifetime)
    assert count == pytest.approx(2000, rel=0.5)
    assert seconds == 8.0 * count
    assert life._num_lives == 0


def test_the_families_add_up() -> None:
    life = PageLife()
    for number in range(5):
        life.take([event(0, What.STORED, number), event(4.0**number, What.REMOVED, number, reason=PageReason.EVICTED)])
    samples = {
        (sample.name, sample.labels.get("le")): sample.value for family in life.families() for sample in family.samples
    }
    name = "kvpager_page_lifetime_seconds"
    buckets = [value for (each, _), value in samples.items() if each == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert samples[f"{name}_count", None] == samples[f"{name}_bucket", "+Inf"] == 5
    assert samples[f"{name}_sum", None] == 1 + 4 + 16 + 64 + 256
    assert samples[f"{name}_bucket", "5.12"] == 2


def test_of_a_real_cache() -> None:
    now = 0.0
    layout = KVLayout(layers=1, kv_heads=1, head_dim=32, dtype="float32", page_size=4)
    with open_cache(layout, num_blocks=4, tiers=[HostTier(pages=8)]) as cache:
        life, log = PageLife(), PageLog(cache, lambda: now)
        log.subscribe(life)
        for first in (1, 21, 1):
            prefill(Stamp(cache), T(first, first + 9)).free()
            assert cache.lower is not None
            assert cache.lower.settle(60)
            log.drain()
            now += 10.0
        assert total(life.tiers[DEVICE].lifetime)[0] >= 2
        assert total(life.tiers[DEVICE].idle)[1] >= 20.0
        assert set(life.tiers) == {DEVICE}
