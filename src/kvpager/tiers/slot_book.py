"""Which page is in which slot of a tier. Numbers only; moves no bytes, knows no files.

    FREE --prepare_store--> WRITING --complete_store--> CACHED --prepare_load--> READING (by one or more transfers)
      ^                        | failed                   |  ^                      | the last one completed
      +------------------------+---- evict, forget -------+  +----------------------+

A page that is forgotten while it is read can't be found from then on; its slot becomes free when the last transfer is
completed. Being read does not change a page's rank, ``touch`` does.

Running sequences *hold* slots whose pages they use where they lie: counted apart from transfers, these are not dropped
either, and one that is forgotten becomes free with its last hold. Which page goes first is in tiers/drop_order.py.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from kvpager.errors import InvariantError
from kvpager.eviction.policy import EvictionPolicy, History
from kvpager.tiers.drop_order import DropOrder, Retains
from kvpager.tiers.slots import Slots
from kvpager.tiers.tier import Page
from kvpager.tiers.watcher import TierWatcher
from kvpager.types import ContentKey, PageReason


@runtime_checkable
class HasBook(Protocol):
    """A tier that chooses itself what it drops."""

    @property
    def book(self) -> "SlotBook": ...


class SlotBook:
    """``num_slots`` slots, numbered from 0. ``policy`` orders the slots that could be dropped."""

    def __init__(self, num_slots: int, policy: EvictionPolicy) -> None:
        self._slots = Slots()
        self._page_of, self._slot_of, self._writing = self._slots.page_of, self._slots.slot_of, self._slots.writing
        self._readers, self._holds = self._slots.readers, self._slots.holds
        self._order = DropOrder(self._slots, num_slots, policy)
        self._free = list(range(num_slots - 1, -1, -1))  # a stack; low numbers are given out first
        self._doomed: set[int] = set()  # being read or held, forgotten: free when the last of these has gone
        self._withdrawn: set[int] = set()  # not given out; those that hold a page do so until it goes
        self.watcher: TierWatcher | None = None
        self.num_slots = num_slots
        self.evicted = 0

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def policy(self) -> EvictionPolicy:
        return self._order.policy

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
        return self._slots.found(key) is not None

    def slot(self, key: ContentKey) -> int | None:
        """Where a page is that can be found."""
        return self._slots.found(key)

    def is_known(self, key: ContentKey) -> bool:
        """There, or on its way."""
        return key in self._slot_of

    def is_busy(self, slot: int) -> bool:
        """Whether a transfer reads it or a sequence holds it, also if its page was forgotten meanwhile."""
        return self._slots.is_busy(slot)

    def is_held(self, slot: int) -> bool:
        """Whether a sequence holds it."""
        return slot in self._holds

    def page(self, slot: int) -> Page:
        """With its history as it is now, where the policy judges."""
        return self._page_of[slot] if slot in self._writing else self._order.page(slot)

    def history(self, key: ContentKey) -> History | None:
        """Of a page that can be found, where the policy judges."""
        slot = self._slots.found(key)
        return None if slot is None else self._order.history(slot)

    def declines(self, page: Page) -> bool:
        """Whether storing the page would cost one that is worth as much."""
        return not self._free and self._order.declines(page)

    def victims(self, count: int) -> list[int]:
        """Up to ``count`` slots that could be dropped at once, the first to go first."""
        return self._order.victims(count)

    def keys(self) -> list[ContentKey]:
        return [self._page_of[slot].key for slot in self._slots.all_found()]

    def pages(self) -> list[Page]:
        """Those that can be found, in the order in which they came."""
        return [self._order.page(slot) for slot in self._slots.all_found()]

    # -- stores -------------------------------------------------------------------------------------------------

    def prepare_store(self, page: Page) -> int | None:
        """A slot for a page that is not known; drops another page if there is no free one. None: no room.

        REQUIRES: it is not declined.
        """
        if page.key in self._slot_of:
            return None
        if not self._free:
            victim = self._order.victim(page.parent)
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
            self._order.arrive([slot])
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
        self._order.arrive(slots)
        self._tell(slots, PageReason.FOUND)

    # -- loads and holds ----------------------------------------------------------------------------------------

    def prepare_load(self, key: ContentKey) -> int | None:
        slot = self._slots.found(key)
        if slot is not None:
            self._order.keep(slot)
            self._readers[slot] += 1
        return slot

    def complete_load(self, slot: int) -> None:
        self._readers[slot] -= 1
        if self._readers[slot]:
            return
        del self._readers[slot]
        if slot not in self._holds:
            self._settle(slot)

    def hold(self, key: ContentKey) -> int | None:
        slot = self._slots.found(key)
        if slot is not None:
            self._order.keep(slot)
            self._holds[slot] += 1
        return slot

    def let_go(self, slot: int) -> None:
        self._holds[slot] -= 1
        if not self._holds[slot]:
            del self._holds[slot]
            if slot not in self._readers:
                self._settle(slot)

    def touch(self, keys: Iterable[ContentKey]) -> None:
        """These pages were used: the last of them is the last to go."""
        known = (self._slots.found(key) for key in keys)
        self._order.used(list(dict.fromkeys(slot for slot in known if slot is not None)))

    def remember(self, pages: Iterable[Page]) -> None:
        """What these pages know of themselves counts here too, from now on."""
        for page in pages:
            slot = self._slots.found(page.key)
            if slot is not None and page.history is not None:
                self._order.remember(slot, page.history)

    # -- pages go -----------------------------------------------------------------------------------------------

    def forget(self, keys: Iterable[ContentKey], why: PageReason = PageReason.FORGOTTEN) -> list[int]:
        """Drops pages; returns their slots, those being read included. Pages being written stay."""
        dropped = []
        for key in keys:
            slot = self._slots.found(key)
            if slot is not None:
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
        self._tell(self._slots.all_found(), PageReason.FOUND)

    # -- slots come and go --------------------------------------------------------------------------------------

    def grow(self, num_slots: int) -> None:
        self._free[:0] = range(num_slots - 1, self.num_slots - 1, -1)
        self.num_slots = num_slots
        self._order.grow(num_slots)

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

    # -- retentions ---------------------------------------------------------------------------------------------

    @property
    def retains(self) -> Retains | None:
        return self._order.retains

    @retains.setter
    def retains(self, retains: Retains | None) -> None:
        self._order.retains = retains

    def repin(self, keys: Iterable[ContentKey]) -> None:
        """What is pinned of these pages has changed."""
        for key in keys:
            slot = self._slots.found(key)
            if slot is not None:
                self._order.repin(slot)

    def rerank(self, key: ContentKey) -> None:
        """A page has another priority. REQUIRES: the policy is partitioned."""
        slot = self._slots.found(key)
        if slot is not None:
            self._order.rerank(slot)

    def partition(self, make: Callable[[str, int], EvictionPolicy]) -> None:
        """Priorities and tenants count from now on. ``make``: a policy by name, over so many slots."""
        self._order.partition(make)

    def first_of(self, tenant: str) -> ContentKey | None:
        """The page that a tenant should lose first. REQUIRES: the policy is partitioned."""
        slot = self._order.first_of(tenant)
        return None if slot is None else self._page_of[slot].key

    # -- inside -------------------------------------------------------------------------------------------------

    def _tell(self, slots: Sequence[int], why: PageReason) -> None:
        """Pages that can be found from now on."""
        if self.watcher is not None:
            for slot in slots:
                page = self._page_of[slot]
                self.watcher.stored(page.key, why, slot, page.parent, page.group)

    def _give_back(self, slot: int) -> None:
        if slot not in self._withdrawn:
            self._free.append(slot)

    def _settle(self, slot: int) -> None:
        """The last reader or holder has gone."""
        if slot in self._doomed:
            self._doomed.remove(slot)
            self._give_back(slot)
        else:
            self._order.settle(slot)

    def _drop(self, slot: int, why: PageReason) -> None:
        if self.watcher is not None:
            self.watcher.removed(self._page_of[slot].key, why, slot)
        self._order.drop(slot)
        self._leave(slot)
        if self.is_busy(slot):
            self._doomed.add(slot)
        else:
            self._give_back(slot)

    def _enter(self, slot: int, page: Page) -> None:
        self._page_of[slot] = page
        self._slot_of[page.key] = slot
        self._order.entered(page)

    def _leave(self, slot: int) -> None:
        page = self._page_of.pop(slot)
        del self._slot_of[page.key]
        self._order.left(page)

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
        busy = [*self._readers.items(), *self._holds.items()]
        if any(count < 1 or (slot not in self._page_of) == (slot not in self._doomed) for slot, count in busy):
            raise InvariantError("a slot of a tier is read or held and has no page, or is counted wrong")
        self._order.check()
