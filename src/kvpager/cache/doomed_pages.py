"""Content whose time to live is over: it goes from every tier, as soon as nobody uses, pins or moves it.

Knows no retentions: they say whose time is over (cache/retention.py), and whose is not after all.
"""

from typing import TYPE_CHECKING

from kvpager.cache.retained_pages import PageWishes, RetainedPages
from kvpager.types import ContentKey

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_CLOSE_SECONDS = 5.0  # for copies of pages that must not outlive the process


class DoomedPages:
    """Of one cache. ``num_dropped``: blocks that became free so."""

    def __init__(self, cache: "PagedCache", pages: RetainedPages) -> None:
        self._cache = cache
        self._pages = pages
        self.by_key: dict[ContentKey, PageWishes] = {}
        self.num_dropped = 0

    def add(self, page: PageWishes) -> None:
        page.is_doomed = True
        self.by_key[page.key] = page
        self._pages.has_changed = True

    def spare(self, page: PageWishes) -> None:
        """Somebody gives the page a new time to live."""
        page.is_doomed = False
        self.by_key.pop(page.key, None)

    def tick(self) -> None:
        """Something may have changed: what can go goes."""
        if self.by_key and (self._pages.has_changed or self._cache.lower is not None):
            self._drop()

    def close(self) -> None:
        """None of it outlives the cache, once what moves has come to rest. REQUIRES: no sequences."""
        if self.by_key:
            self._drop()
        if self.by_key and self._cache.lower is not None:
            self._cache.lower.settle(_CLOSE_SECONDS)
            self._drop()

    def _drop(self) -> None:
        """What is used, pinned or moved goes later."""
        cache, lower = self._cache, self._cache.lower
        self._pages.has_changed = False
        due = [each for each in self.by_key.values() if not each.pins]
        here = [each.block for each in due if each.block is not None and cache.pool.refcount[each.block] == 0]
        if here:
            self.num_dropped += len(here)
            cache._reclaimer.forget(cache.evictable.with_dependants(here))
        for tier in self._pages.tiers():
            tier.forget([each.key for each in due])
        moving = set() if lower is None else lower.migration.moving_keys()
        for each in due:
            if each.block is None and each.key not in moving:
                self.spare(each)
                self._pages.close(each)
