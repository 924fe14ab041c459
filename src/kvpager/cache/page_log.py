"""What happens to pages, one event each, for whoever subscribes: metrics, KV events, journeys. Nobody there, no log.

    prefix index --attached, detaching, moved, cleared-->  +---------+              +-- page life
    tiers below  --stored, removed, cleared------------->  | PageLog |  -- drain -->+-- KV events
    migration    --loaded------------------------------->  |         |              +-- journeys
    evictable    --hit, released------------------------>  +---------+
    steps        --demanded, copied--------------------->

An event is noted by the bookkeeping thread where it happens, and handed on between two steps (``drain``), so that no
step waits for a subscriber. Whoever replays what was handed on has after each drain exactly the pages that can be found
on the device and in each tier: STORED adds (tier, key), REMOVED takes it away, CLEARED takes all of a tier away.

The log is bounded. Events that find no room are dropped and counted; the next drain then ends with CLEARED and all the
pages that are there, for each tier that lost count. A subscriber that has no room is passed over, and told all that is
there when it has room again; one that fails is let go. Nothing here can fail a step.
"""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from kvpager.errors import ConfigError
from kvpager.prefix.hashing import Scope, block_key
from kvpager.tiers.tier import LowerTier, Page
from kvpager.types import Clock, ContentKey, NodeId, PageReason, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

CAPACITY = 1 << 16  # events between two drains
_ANY_SCOPE = Scope()
_NOWHERE = -1  # in events without a block only

_log = logging.getLogger(__name__)


class What(Enum):
    """What happened to a page. The first four say what lies where; the others how it is used."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"  # all pages of a tier
    MOVED = "moved"  # it lies in another block, since the pool was made smaller
    LOADED = "loaded"  # its bytes have come from ``tier`` into ``block``
    HIT = "hit"  # a request found it
    RELEASED = "released"  # nobody maps it any more
    DEMAND = "demand"  # a new page took a block; it has no key yet
    COPIED = "copied"  # it was written, so the writer has a copy of its own in ``block``


_PLACES = {What.STORED, What.REMOVED, What.CLEARED, What.MOVED}


class PageEvent(NamedTuple):
    """A tuple, since a busy engine makes thousands a second.

    ``time``: seconds of the log's clock. ``key``: of the page in its layer group, None where it has none. ``parent``:
    of the page before it, or of the scope; None where it is not known. ``block``: on the device, or the tier's slot.
    ``content``: of STORED on the device, for subscribers that want it: the token ids as int32 bytes, then the media.
    ``scope``: of the first page of a prompt: empty for the scope without salt and adapter, or else 16 digits that name
    it; None for other pages, and where it is not known.
    """

    time: float
    what: What
    tier: TierKind
    key: ContentKey | None = None
    parent: ContentKey | None = None
    group: int = 0
    block: int = _NOWHERE
    reason: PageReason | None = None
    content: bytes | None = None
    scope: str | None = None


class Subscriber(Protocol):
    """``wants_content``: token ids with the pages of the device. ``wants_uses``: LOADED, HIT, RELEASED
    and COPIED as well. ``wants_new``: DEMAND, of pages that have no name yet.

    What one subscriber wants, the others hear too.
    """

    wants_content: bool
    wants_uses: bool
    wants_new: bool

    @property
    def has_room(self) -> bool:
        """Whether it would take events now."""
        ...

    def take(self, events: Sequence[PageEvent]) -> None:
        """Bookkeeping thread, between two steps: be quick. The list may be kept, and not changed."""
        ...


class PageLog:
    """Of one cache, attached as long as somebody subscribes. ``capacity``: events that it holds between two drains.

    REQUIRES: every call comes from the cache's thread.
    """

    def __init__(self, cache: "PagedCache", clock: Clock, capacity: int = CAPACITY) -> None:
        self.dropped = 0  # events, since there was no room for them
        self.failed = 0  # subscribers that raised, and were let go
        self._cache = cache
        self._clock = clock
        self._capacity = capacity
        self._events: list[PageEvent] = []
        self._subscribers: list[Subscriber] = []
        self._passed_over: list[Subscriber] = []
        self._lost_count: set[TierKind] = set()
        self._wants_content = self._wants_uses = self._wants_new = False
        copies = cache.paging.copies
        self._private = None if copies is None else copies.private_parent

    # -- subscribers --------------------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> None:
        """It is told what is there now, and with each drain what has happened."""
        if self._cache.page_log not in (None, self):
            raise ConfigError("the cache has a page log already: subscribe to that one")
        self.drain()
        self._subscribers.append(subscriber)
        self._attach()
        self._hand(subscriber, self._everything())

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Once the last has gone, nothing is noted any more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)
            self._passed_over = [each for each in self._passed_over if each is not subscriber]
            self._attach()

    def _attach(self) -> None:
        """Listens as far as somebody wants to hear."""
        cache, is_on = self._cache, bool(self._subscribers)
        self._wants_content = any(each.wants_content for each in self._subscribers)
        self._wants_uses = any(each.wants_uses for each in self._subscribers)
        self._wants_new = any(each.wants_new for each in self._subscribers)
        cache.index.watcher = self if is_on else None
        cache.page_log = self if is_on else None
        cache.evictable.uses = self if self._wants_uses else None
        if cache.lower is not None:
            cache.lower.migration.watcher = self if self._wants_uses else None
        if not is_on:
            self._events.clear()
            for tier in self._tiers():
                tier.watch(None)

    def drain(self) -> None:
        """Hands on what has happened since the last time."""
        events = self._events
        if not events and not self._passed_over:
            return
        self._events = []
        for tier in sorted(self._lost_count):
            events += self._all_of(tier)
        self._lost_count.clear()
        for subscriber in tuple(self._subscribers):
            is_behind = subscriber in self._passed_over
            if not subscriber.has_room:
                if not is_behind:
                    self._passed_over.append(subscriber)
            elif is_behind:
                self._passed_over.remove(subscriber)
                self._hand(subscriber, self._everything())
            elif events:
                self._hand(subscriber, events)

    def _hand(self, subscriber: Subscriber, events: Sequence[PageEvent]) -> None:
        try:
            subscriber.take(events)
        except Exception as error:  # a page is worth more than what is told of it
            self.failed += 1
            self.unsubscribe(subscriber)
            _log.warning("%s has failed (%s) and hears no more", type(subscriber).__name__, type(error).__name__)

    # -- what is there ------------------------------------------------------------------------------------------

    def _everything(self) -> list[PageEvent]:
        """CLEARED, and all the pages that are there, for each tier, which is watched from now on. O(pages)."""
        kinds = [TierKind.DEVICE, *(tier.kind for tier in self._tiers())]
        return [event for kind in kinds for event in self._all_of(kind)]

    def _tiers(self) -> Sequence[LowerTier]:
        return () if self._cache.lower is None else self._cache.lower.migration.tiers

    def _all_of(self, kind: TierKind) -> list[PageEvent]:
        noted, self._events = self._events, []
        capacity, self._capacity = self._capacity, 1 << 62
        self._note(What.CLEARED, kind, reason=PageReason.LOST_COUNT)
        if kind is TierKind.DEVICE:
            self._tell_device()
        for tier in self._tiers():
            if tier.kind is kind:
                tier.watch(_TierEvents(self, kind))
        found, self._events, self._capacity = self._events, noted, capacity
        return found

    def _tell_device(self) -> None:
        """Parents before children, and a child right after its parent, as far as that goes."""
        index, told = self._cache.index, set[NodeId]()
        for block in index.all_blocks().tolist():
            path, node = [], index.node_of_block(block)
            while node not in told and index.label(node) is not None:
                path.append(node)
                node = index.parent(node)
            for node in reversed(path):
                told.add(node)
                for group in range(self._cache.layout.num_groups):
                    held = index.block(node, group)
                    if held is not None:
                        self.attached(node, group, held, PageReason.FOUND)

    # -- what happens on the device -----------------------------------------------------------------------------

    def attached(self, node: NodeId, group: int, block: int, why: PageReason) -> None:
        index = self._cache.index
        above, content = index.parent(node), index.label(node) if self._wants_content else None
        parent, scope = block_key(index.key(above), group), None
        if index.label(above) is None:
            scope = "" if index.key(above) == self._cache._root_key(_ANY_SCOPE) else index.key(above).hex()[:16]
        self._note(What.STORED, TierKind.DEVICE, self._key(node, group), block, why, parent, group, content, scope)

    def detaching(self, node: NodeId, group: int, block: int, why: PageReason) -> None:
        self._note(What.REMOVED, TierKind.DEVICE, self._key(node, group), block, why, group=group)

    def moved(self, node: NodeId, group: int, block: int) -> None:
        self._note(What.MOVED, TierKind.DEVICE, self._key(node, group), block, group=group)

    def cleared(self) -> None:
        self._note(What.CLEARED, TierKind.DEVICE, reason=PageReason.CLEARED)

    def hit(self, blocks: np.ndarray) -> None:
        self._note_blocks(What.HIT, blocks)

    def released(self, blocks: np.ndarray) -> None:
        self._note_blocks(What.RELEASED, blocks)

    def _note_blocks(self, what: What, blocks: np.ndarray) -> None:
        index = self._cache.index
        for block in blocks.tolist():
            group = index.group_of_block(block)
            self._note(what, TierKind.DEVICE, self._key(index.node_of_block(block), group), block, group=group)

    def demanded(self, blocks: np.ndarray) -> None:
        """New pages took these blocks."""
        if self._wants_new:
            for block in blocks.tolist():
                self._note(What.DEMAND, TierKind.DEVICE, block=block)

    def copied(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Whoever writes a page has it in the target from now on."""
        if not self._wants_uses:
            return
        index, indexed = self._cache.index, self._cache.pool.indexed
        key: ContentKey | None
        for source, target in zip(sources, targets, strict=True):
            key, group = None, 0
            if indexed[source]:
                group = index.group_of_block(source)
                key = self._key(index.node_of_block(source), group)
            self._note(What.COPIED, TierKind.DEVICE, key, target, group=group)

    # -- what happens below -------------------------------------------------------------------------------------

    def loaded(self, page: Page, tier: TierKind, block: int) -> None:
        self._note(What.LOADED, tier, page.key, block, parent=page.parent, group=page.group)

    def stored_below(
        self, tier: TierKind, key: ContentKey, reason: PageReason, slot: int, parent: ContentKey | None, group: int
    ) -> None:
        if parent is not None and parent == self._private:
            reason = PageReason.PRIVATE
        self._note(What.STORED, tier, key, slot, reason, parent, group)

    def removed_below(self, tier: TierKind, key: ContentKey, reason: PageReason, slot: int) -> None:
        self._note(What.REMOVED, tier, key, slot, reason)

    def cleared_below(self, tier: TierKind) -> None:
        self._note(What.CLEARED, tier, reason=PageReason.CLEARED)

    # -- inside -------------------------------------------------------------------------------------------------

    def _key(self, node: NodeId, group: int) -> ContentKey:
        return block_key(self._cache.index.key(node), group)

    def _note(
        self,
        what: What,
        tier: TierKind,
        key: ContentKey | None = None,
        block: int = _NOWHERE,
        reason: PageReason | None = None,
        parent: ContentKey | None = None,
        group: int = 0,
        content: bytes | None = None,
        scope: str | None = None,
    ) -> None:
        if len(self._events) < self._capacity:
            now = self._clock()
            self._events.append(PageEvent(now, what, tier, key, parent, group, block, reason, content, scope))
            return
        self.dropped += 1
        if what in _PLACES:
            self._lost_count.add(tier)


class _TierEvents:
    """What one tier says, with its name."""

    def __init__(self, log: PageLog, tier: TierKind) -> None:
        self._log = log
        self._tier = tier

    def stored(
        self, key: ContentKey, why: PageReason, slot: int, parent: ContentKey | None = None, group: int = 0
    ) -> None:
        self._log.stored_below(self._tier, key, why, slot, parent, group)

    def removed(self, key: ContentKey, why: PageReason, slot: int) -> None:
        self._log.removed_below(self._tier, key, why, slot)

    def cleared(self) -> None:
        self._log.cleared_below(self._tier)
