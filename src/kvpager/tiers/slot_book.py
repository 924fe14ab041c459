"""Which page is in which slot of a tier, and which goes first. Numbers only; moves no bytes, knows no files.

    FREE --prepare_store--> WRITING --complete_store--> CACHED --prepare_load--> READING (by one or more transfers)
      ^                        | failed                   |  ^                      | the last one completed
      +------------------------+---- evict, forget -------+  +----------------------+

A page that is forgotten while it is read can't be found from then on; its slot becomes free when the last transfer is
completed. Being read does not change a page's rank, ``touch`` does.

Running sequences *hold* slots whose pages they use where they lie: counted apart from transfers, these are not dropped
either, and one that is forgotten becomes free with its last hold.

Leaves go before their parents: a page that another page in this tier hangs under is not dropped, so only leaves that
nobody reads are offered to the policy. A page whose last child was dropped counts from its own last use.

Where the policy judges, a page is stored only if it is worth more than what would have to go for it. One under which
pages of this tier hang is stored in any case: they were worth it, and nobody reaches them without it. So is one without
a history, since nothing is known against it. Partitions by priority and tenant don't judge.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.partitioned import Partitioned, alike
from kvpager.eviction.policy import NO_USE, EvictionPolicy, History, JudgingPolicy, Use
from kvpager.tiers.tier import Page
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import ContentKey, PageReason


class Retains(Protocol):
    """What retentions have to say of pages by key; cache/retention.py answers."""

    def is_pinned(self, key: ContentKey) -> bool: ...

    def use_below(self, key: ContentKey) -> Use: ...


@runtime_checkable
class HasBook(Protocol):
    """A tier that chooses itself what it drops."""

    @property
    def book(self) -> "SlotBook": ...


class SlotBook:
    """``num_slots`` slots, numbered from 0. ``policy`` orders the slots that could be dropped."""

    def __init__(self, num_slots: int, policy: EvictionPolicy) -> None:
        self._set_policy(policy)
        self._free = list(range(num_slots - 1, -1, -1))  # a stack; low numbers are given out first
        self._page_of: dict[int, Page] = {}  # slots that are written or being written
        self._slot_of: dict[ContentKey, int] = {}
        self._writing: set[int] = set()
        self._readers: Counter[int] = Counter()
        self._holds: Counter[int] = Counter()
        self._doomed: set[int] = set()  # being read or held, forgotten: free when the last of these has gone
        self._withdrawn: set[int] = set()  # not given out; those that hold a page do so until it goes
        self._children: Counter[ContentKey] = Counter()
        self._pinned: set[int] = set()  # not dropped while there is another, half of all slots at most
        self.retains: Retains | None = None  # once something is retained
        self.watcher: TierWatcher | None = None
        self.num_slots = num_slots
        self.evicted = 0

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_pages(self) -> int:
        """Pages that can be found."""
        return len(self._slot_of) - len(self._writing)

    @property
    def num_moving(self) -> int:
        """Slots that a transfer holds."""
        return len(self._writing) + len(self._readers)

    @property
    def num_held(self) -> int:
        """Slots that sequences hold and no transfer does."""
        return len(self._holds) - sum(slot in self._holds for slot in self._readers)

    @property
    def num_in_service(self) -> int:
        """Slots without those that were withdrawn and hold nothing."""
        return len(self._free) + len(self._page_of) + len(self._doomed)

    def contains(self, key: ContentKey) -> bool:
        slot = self._slot_of.get(key)
        return slot is not None and slot not in self._writing

    def is_known(self, key: ContentKey) -> bool:
        """There, or on its way."""
        return key in self._slot_of

    def is_busy(self, slot: int) -> bool:
        """Whether a transfer reads it or a sequence holds it, also if its page was forgotten meanwhile."""
        return slot in self._readers or slot in self._holds

    def is_held(self, slot: int) -> bool:
        """Whether a sequence holds it."""
        return slot in self._holds

    def page(self, slot: int) -> Page:
        """With its history as it is now, where the policy judges."""
        page = self._page_of[slot]
        if self._judge is None or slot in self._writing:
            return page
        return replace(page, history=self._judge.history(slot))

    def history(self, key: ContentKey) -> History | None:
        """Of a page that can be found, where the policy judges."""
        return self._judge.history(self._slot_of[key]) if self._judge is not None and self.contains(key) else None

    def declines(self, page: Page) -> bool:
        """Whether storing the page would cost one that is worth as much."""
        if self._judge is None or page.history is None or self._free or page.key in self._children:
            return False
        if self.retains is not None and self.retains.is_pinned(page.key):
            return False
        slot = self._victim(page.parent)
        return slot is not None and self._judge.worth_of(page.history) <= self._judge.worth(slot)

    def keys(self) -> list[ContentKey]:
        return [key for key, slot in self._slot_of.items() if slot not in self._writing]

    def pages(self) -> list[Page]:
        """Those that can be found, in the order in which they came."""
        return [self.page(slot) for slot in self._slot_of.values() if slot not in self._writing]

    # -- changes ------------------------------------------------------------------------------------------------

    def prepare_store(self, page: Page) -> int | None:
        """A slot for a page that is not known; drops another page if there is no free one. None: no room.

        REQUIRES: it is not declined.
        """
        if page.key in self._slot_of:
            return None
        if not self._free:
            victim = self._victim(page.parent)
            if victim is None:
                return None
            self.evicted += 1
            self._drop(victim, PageReason.EVICTED)
        slot = self._free.pop()
        self._enter(slot, page)
        self._writing.add(slot)
        return slot

    def complete_store(self, slot: int, succeeded: bool) -> None:
        self._writing.remove(slot)
        if succeeded:
            self._arrive([slot])
            self._tell([slot], PageReason.COPIED)
        else:
            self._leave(slot)
            self._give_back(slot)

    def adopt_all(self, slots: Sequence[int], pages: Sequence[Page]) -> None:
        """Slots that were found written, at start; the first is the first to go. REQUIRES: free, keys unknown."""
        taken = set(slots)
        self._free = [slot for slot in self._free if slot not in taken]
        for slot, page in zip(slots, pages, strict=True):
            self._enter(slot, page)
        self._arrive(slots)
        self._tell(slots, PageReason.FOUND)

    def prepare_load(self, key: ContentKey) -> int | None:
        slot = self._slot_of.get(key)
        if slot is None or slot in self._writing:
            return None
        self._keep(slot)
        self._readers[slot] += 1
        return slot

    def complete_load(self, slot: int) -> None:
        self._readers[slot] -= 1
        if self._readers[slot]:
            return
        del self._readers[slot]
        self._settle(slot)

    def hold(self, key: ContentKey) -> int | None:
        slot = self.slot(key)
        if slot is not None:
            self._keep(slot)
            self._holds[slot] += 1
        return slot

    def let_go(self, slot: int) -> None:
        self._holds[slot] -= 1
        if not self._holds[slot]:
            del self._holds[slot]
            self._settle(slot)

    def touch(self, keys: Iterable[ContentKey]) -> None:
        """These pages were used: the last of them is the last to go."""
        known = (self._slot_of.get(key) for key in keys)
        used = list(dict.fromkeys(slot for slot in known if slot is not None and slot not in self._writing))
        self.policy.hit(np.array(used, np.int64))
        self._release(used)
        self._offer_leaves(used)

    def remember(self, pages: Iterable[Page]) -> None:
        """What these pages know of themselves counts here too, from now on."""
        for page in pages:
            if self._judge is not None and page.history is not None and self.contains(page.key):
                slot = self._slot_of[page.key]
                self._judge.take_over(slot, page.history)
                self._offer_leaves([slot])

    def forget(self, keys: Iterable[ContentKey], why: PageReason = PageReason.FORGOTTEN) -> list[int]:
        """Drops pages; returns their slots, those being read included. Pages being written stay."""
        dropped = []
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is None or slot in self._writing:
                continue
            self._drop(slot, why)
            dropped.append(slot)
        return dropped

    def forget_slots(self, slots: Sequence[int]) -> list[int]:
        """``forget`` of the pages in these slots, which can't be read any more."""
        return self.forget([self._page_of[slot].key for slot in slots if slot in self._page_of], PageReason.FAILED)

    def clear(self) -> list[int]:
        """``forget`` of all pages."""
        watcher, self.watcher = self.watcher, None  # it is told once
        dropped = self.forget(self.keys())
        self.watcher = watcher
        if watcher is not None:
            watcher.cleared()
        return dropped

    def watch(self, watcher: TierWatcher | None) -> None:
        """See ``LowerTier.watch``."""
        self.watcher = watcher
        self._tell([slot for slot in self._slot_of.values() if slot not in self._writing], PageReason.FOUND)

    def _tell(self, slots: Sequence[int], why: PageReason) -> None:
        """Pages that can be found from now on."""
        if self.watcher is not None:
            for slot in slots:
                page = self._page_of[slot]
                self.watcher.stored(page.key, why, slot, page.parent, page.group)

    def withdraw(self, slots: Sequence[int]) -> None:
        """These slots are not given out until they are restored; pages in them stay."""
        self._withdrawn.update(slots)
        self._free = [slot for slot in self._free if slot not in self._withdrawn]

    def restore(self, slots: Sequence[int]) -> None:
        """The opposite of ``withdraw``, also for slots that are in service."""
        back = self._withdrawn.intersection(slots)
        self._withdrawn -= back
        idle = [slot for slot in back if slot not in self._page_of and slot not in self._doomed]
        self._free[:0] = sorted(idle, reverse=True)

    def victims(self, count: int) -> list[int]:
        """Up to ``count`` slots that could be dropped at once, the first to go first."""
        found: list[int] = []
        while len(found) < count and (slot := self.policy.victim()) is not None:
            found.append(slot)
            self.policy.withdraw(np.array([slot]))
        self.policy.offer(np.array(found, np.int64))
        return found

    # -- retentions ---------------------------------------------------------------------------------------------

    def repin(self, keys: Iterable[ContentKey]) -> None:
        """What is pinned of these pages has changed."""
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is not None and slot not in self._writing:
                self._pin([slot])
                self._offer_leaves([slot])

    def rerank(self, key: ContentKey) -> None:
        """A page has another priority. REQUIRES: the policy is partitioned."""
        slot = self.slot(key)
        if slot is not None and self.retains is not None and isinstance(self.policy, Partitioned):
            use = self.retains.use_below(key)
            self.policy.assign(slot, use.priority, use.tenant)

    def partition(self, make: Callable[[str, int], EvictionPolicy]) -> None:
        """Priorities and tenants count from now on. ``make``: a policy by name, over so many slots."""
        first = self.policy
        slots = [slot for slot in self._page_of if slot not in self._writing]
        may_go = [slot for slot in slots if not self._stays(slot) and self._is_leaf(slot)]
        self._set_policy(Partitioned(self.num_slots, partial(alike, first, make), first, slots, may_go))
        for slot in slots:
            self.rerank(self._page_of[slot].key)

    def first_of(self, tenant: str) -> ContentKey | None:
        """The page that a tenant should lose first. REQUIRES: the policy is partitioned."""
        assert isinstance(self.policy, Partitioned)
        slot = self.policy.victim_of(tenant)
        return None if slot is None else self._page_of[slot].key

    def slot(self, key: ContentKey) -> int | None:
        """Where a page is that can be found."""
        slot = self._slot_of.get(key)
        return None if slot in self._writing else slot

    def _pin(self, slots: Iterable[int]) -> None:
        for slot in slots:
            wanted = self.retains is not None and self.retains.is_pinned(self._page_of[slot].key)
            if not wanted:
                self._pinned.discard(slot)
            elif len(self._pinned) < self.num_slots // 2:
                self._pinned.add(slot)
                self.policy.withdraw(np.array([slot]))

    def _release(self, slots: Sequence[int]) -> None:
        if self.retains is None:
            self.policy.release(np.array(slots, np.int64), NO_USE)
            return
        for slot in slots:
            self.policy.release(np.array([slot]), self.retains.use_below(self._page_of[slot].key))

    def grow(self, num_slots: int) -> None:
        self._free[:0] = range(num_slots - 1, self.num_slots - 1, -1)
        self.num_slots = num_slots
        self.policy.resize(num_slots)

    def _set_policy(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._judge = policy if isinstance(policy, JudgingPolicy) else None

    # -- inside -------------------------------------------------------------------------------------------------

    def _give_back(self, slot: int) -> None:
        if slot not in self._withdrawn:
            self._free.append(slot)

    def _keep(self, slot: int) -> None:
        """A reader or a holder comes; from the second on it is not to be dropped anyway."""
        if not self._stays(slot):
            self.policy.withdraw(np.array([slot]))

    def _settle(self, slot: int) -> None:
        """A reader or a holder has gone."""
        if slot not in self._doomed:
            self._offer_leaves([slot])
        elif not self.is_busy(slot):
            self._doomed.remove(slot)
            self._give_back(slot)

    def _stays(self, slot: int) -> bool:
        return self.is_busy(slot) or slot in self._pinned

    def _busy(self) -> list[tuple[int, int]]:
        return [*self._readers.items(), *self._holds.items()]

    def _is_leaf(self, slot: int) -> bool:
        return self._page_of[slot].key not in self._children

    def _arrive(self, slots: Sequence[int]) -> None:
        """Pages that can be found from now on."""
        keys = [int.from_bytes(self._page_of[slot].key[:8], "little") for slot in slots if self.policy.uses_keys]
        self.policy.enter(np.array(slots, np.int64), np.array(keys, np.uint64))
        self._begin(slots)
        if self.retains is not None:
            self._pin(slots)
        self._offer_leaves(slots)

    def _begin(self, slots: Sequence[int]) -> None:
        """Pages that have entered count from their history, or else from now."""
        new = list(slots)
        if self._judge is not None:
            for slot in slots:
                history = self._page_of[slot].history
                if history is not None:
                    self._judge.take_over(slot, history)
                    new.remove(slot)
        if new:
            self._release(new)

    def _offer_leaves(self, slots: Iterable[int]) -> None:
        leaves = [slot for slot in slots if self._is_leaf(slot) and not self._stays(slot)]
        if leaves:
            self.policy.offer(np.array(leaves))

    def _victim(self, keep: ContentKey) -> int | None:
        """The page to go first, but not ``keep``, under which the new one will hang."""
        slot = self.policy.victim()
        if slot is None or self._page_of[slot].key != keep:
            return slot
        return next((other for other in self.victims(2) if other != slot), None)

    def _drop(self, slot: int, why: PageReason) -> None:
        if self.watcher is not None:
            self.watcher.removed(self._page_of[slot].key, why, slot)
        self.policy.leave(np.array([slot]))
        self._pinned.discard(slot)
        self._leave(slot)
        if self.is_busy(slot):
            self._doomed.add(slot)
        else:
            self._give_back(slot)

    def _enter(self, slot: int, page: Page) -> None:
        self._page_of[slot] = page
        self._slot_of[page.key] = slot
        self._children[page.parent] += 1
        parent = self._slot_of.get(page.parent)
        if parent is not None and self._children[page.parent] == 1:
            self.policy.withdraw(np.array([parent]))

    def _leave(self, slot: int) -> None:
        page = self._page_of.pop(slot)
        del self._slot_of[page.key]
        self._children[page.parent] -= 1
        if not self._children[page.parent]:
            del self._children[page.parent]
            parent = self._slot_of.get(page.parent)
            if parent is not None and parent not in self._writing:
                self._offer_leaves([parent])

    def check(self) -> None:
        """Raises InvariantError unless slots, pages and the policy agree."""
        if len(self._page_of) != len(self._slot_of):
            raise InvariantError("slots and pages of a tier differ in number")
        for key, slot in self._slot_of.items():
            if self._page_of[slot].key != key:
                raise InvariantError(f"slot {slot} holds another page than the one that names it")
        idle = self._withdrawn.difference(self._page_of, self._doomed)
        if self.num_in_service + len(idle) != self.num_slots or not self._withdrawn.isdisjoint(self._free):
            raise InvariantError("free and taken slots of a tier do not add up")
        if len(set(self._free)) != len(self._free) or not set(self._free).isdisjoint(self._page_of):
            raise InvariantError("a slot of a tier is free twice, or free and taken")
        if any(count < 1 or (slot not in self._page_of) == (slot not in self._doomed) for slot, count in self._busy()):
            raise InvariantError("a slot of a tier is read or held and has no page, or is counted wrong")
        if self._children != Counter(page.parent for page in self._page_of.values()):
            raise InvariantError("the children of a tier's pages are counted wrong")
        may_go = [
            slot
            for slot in self._page_of
            if slot not in self._writing and not self._stays(slot) and self._is_leaf(slot)
        ]
        self.policy.check(np.array(sorted(may_go), np.int64))
