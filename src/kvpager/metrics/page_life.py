"""How long pages live, lie idle and wait for their next use, on the device and in each tier, as histograms of seconds.

    stored ---- hit ---- hit -------- removed
            first use  |-gap-|  idle |
    |------------- lifetime ---------|

An idle time runs from the last use: on the device a use ends when nobody maps the page any more, below it is the load
of a page. Reuse gaps lie between two uses of one page, so that its first use has none. Pages that were there before
anybody listened count from then on; those that go with a whole tier (cleared) do not count.

Memory is bounded by following a sample: where more pages are alive than ``most``, every other key is given up, and the
rest counts twice from then on, and so on; which ones stay is decided by the key, a hash, so nothing else decides it.
The buckets double from 10 ms to a month.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.cache.page_log import PageEvent, What
from kvpager.types import ContentKey, PageReason, TierKind

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily

BOUNDS = tuple(0.01 * 2.0**power for power in range(29))  # seconds
MOST_PAGES = 1 << 16
_IS_EVICTED = frozenset({PageReason.EVICTED, PageReason.PAGED_OUT})


class SecondsHistogram:
    """Observations of one kind. ``counts``: by bucket, the last one is for what is longer than all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, weight: int) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += weight
        self.sum += weight * seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants it: how many were at most so long."""
        total, found = 0, []
        for bound, count in zip((*(f"{each:g}" for each in BOUNDS), "+Inf"), list(self.counts), strict=True):
            total += count
            found.append((bound, float(total)))
        return found


@dataclass(slots=True)
class _Life:
    """``used``: when it was last used, or came; ``has_use``: whether it was used since it came."""

    came: float
    used: float
    has_use: bool = False


@dataclass(frozen=True, slots=True)
class TierLife:
    """Of one tier. ``idle``: of pages that made room for others; ``lifetime``: of all that went one by one."""

    lifetime: SecondsHistogram
    idle: SecondsHistogram
    reuse_gap: SecondsHistogram


class PageLife:
    """A subscriber of the page log. ``most``: pages that are followed at once, in all tiers."""

    wants_content = wants_new = False
    wants_uses = True
    has_room = True

    def __init__(self, most: int = MOST_PAGES) -> None:
        self.tiers: dict[TierKind, TierLife] = {}
        self.one_in = 1  # so many pages, one is followed
        self._most = most
        self._lives: dict[TierKind, dict[ContentKey, _Life]] = {}
        self._num_lives = 0

    def take(self, events: Sequence[PageEvent]) -> None:
        for event in events:
            if event.key is not None:
                if not int.from_bytes(event.key[:4], "little") % self.one_in:
                    self._page(event, event.key)
            elif event.what is What.CLEARED:
                self._num_lives -= len(self._lives.pop(event.tier, ()))

    def _page(self, event: PageEvent, key: ContentKey) -> None:
        lives = self._lives.setdefault(event.tier, {})
        if event.what is What.STORED:
            lives[key] = _Life(event.time, event.time)
            self._num_lives += 1
            if self._num_lives > self._most:
                self._follow_fewer()
        elif (life := lives.get(key)) is None:
            return
        elif event.what is What.REMOVED:
            del lives[key]
            self._num_lives -= 1
            self._ended(event, life)
        elif event.what in (What.HIT, What.LOADED):
            if life.has_use:
                self._of(event.tier).reuse_gap.observe(max(0.0, event.time - life.used), self.one_in)
            life.used, life.has_use = event.time, True
        elif event.what is What.RELEASED:
            life.used = event.time

    def _ended(self, event: PageEvent, life: _Life) -> None:
        tier = self._of(event.tier)
        tier.lifetime.observe(max(0.0, event.time - life.came), self.one_in)
        if event.reason in _IS_EVICTED:
            tier.idle.observe(max(0.0, event.time - life.used), self.one_in)

    def _of(self, tier: TierKind) -> TierLife:
        found = self.tiers.get(tier)
        if found is None:
            # A new dictionary, since whoever shows this may just be walking through the old one.
            found = TierLife(SecondsHistogram(), SecondsHistogram(), SecondsHistogram())
            self.tiers = {**self.tiers, tier: found}
        return found

    def _follow_fewer(self) -> None:
        self.one_in *= 2
        for lives in self._lives.values():
            for key in [key for key in lives if int.from_bytes(key[:4], "little") % self.one_in]:
                del lives[key]
        self._num_lives = sum(map(len, self._lives.values()))

    # -- any thread ---------------------------------------------------------------------------------------------

    def families(self) -> "list[HistogramMetricFamily]":
        """For a collector of prometheus_client."""
        from prometheus_client.core import HistogramMetricFamily

        about = {
            "lifetime": "From when a page could be found in a tier until it could not any more",
            "idle": "From the last use of a page until it made room for another",
            "reuse_gap": "Between two uses of a page",
        }
        name = {
            "lifetime": "kvpager_page_lifetime_seconds",
            "idle": "kvpager_page_idle_before_eviction_seconds",
            "reuse_gap": "kvpager_page_reuse_gap_seconds",
        }
        families = []
        for kind, text in about.items():
            family = HistogramMetricFamily(name[kind], text, labels=["tier"])
            for tier, life in sorted(self.tiers.items()):
                histogram: SecondsHistogram = getattr(life, kind)
                family.add_metric([tier.name.lower()], histogram.cumulative(), histogram.sum)
            families.append(family)
        return families
