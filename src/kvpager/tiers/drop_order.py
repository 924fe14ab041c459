"""Which page of a tier goes first: keeps the eviction policy told of what is used and what could be dropped.

Leaves go before their parents: a page that another page in this tier hangs under is not dropped, so only leaves that
nobody reads or holds are offered to the policy. A page whose last child was dropped counts from its own last use.

Where the policy judges, a page is stored only if it is worth more than what would have to go for it. One under which
pages of this tier hang is stored in any case: they were worth it, and nobody reaches them without it. So is one without
a history, since nothing is known against it. Partitions by priority and tenant don't judge.

Knows which page is in which slot (tiers/slots.py) and changes nothing of that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.partitioned import Partitioned, alike
from kvpager.eviction.policy import NO_USE, EvictionPolicy, History, JudgingPolicy, Use
from kvpager.tiers.slots import Slots
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey


class Retains(Protocol):
    """What retentions have to say of pages by key; cache/retention.py answers."""

    def is_pinned(self, key: ContentKey) -> bool: ...

    def use_below(self, key: ContentKey) -> Use: ...


class DropOrder:
    """``policy`` orders the slots that could be dropped. ``retains``: None until something is retained."""

    def __init__(self, slots: Slots, num_slots: int, policy: EvictionPolicy) -> None:
        self._slots = slots
        self._num_slots = num_slots
        self._children: Counter[ContentKey] = Counter()
        self._pinned: set[int] = set()  # not dropped while there is another, half of all slots at most
        self.retains: Retains | None = None
        self._set_policy(policy)

    def grow(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.policy.resize(num_slots)

    def _set_policy(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._judge = policy if isinstance(policy, JudgingPolicy) else None

    # -- questions ----------------------------------------------------------------------------------------------

    def victim(self, keep: ContentKey) -> int | None:
        """The page to go first, but not ``keep``, under which a new one will hang."""
        slot = self.policy.victim()
        if slot is None or self._slots.page_of[slot].key != keep:
            return slot
        return next((other for other in self.victims(2) if other != slot), None)

    def victims(self, count: int) -> list[int]:
        """Up to ``count`` slots that could be dropped at once, the first to go first."""
        found: list[int] = []
        while len(found) < count and (slot := self.policy.victim()) is not None:
            found.append(slot)
            self.policy.withdraw(np.array([slot]))
        self.policy.offer(np.array(found, np.int64))
        return found

    def declines(self, page: Page) -> bool:
        """Whether storing the page would cost one that is worth as much. REQUIRES: no slot is free."""
        if self._judge is None or page.history is None or page.key in self._children:
            return False
        if self.retains is not None and self.retains.is_pinned(page.key):
            return False
        slot = self.victim(page.parent)
        return slot is not None and self._judge.worth_of(page.history) <= self._judge.worth(slot)

    def history(self, slot: int) -> History | None:
        """Of a page that can be found, where the policy judges."""
        return None if self._judge is None else self._judge.history(slot)

    def page(self, slot: int) -> Page:
        """With its history as it is now, where the policy judges. REQUIRES: it can be found."""
        page = self._slots.page_of[slot]
        return page if self._judge is None else replace(page, history=self._judge.history(slot))

    # -- pages come and go --------------------------------------------------------------------------------------

    def entered(self, page: Page) -> None:
        """It has a slot, and perhaps a parent in this tier, which is no leaf any more."""
        self._children[page.parent] += 1
        parent = self._slots.slot_of.get(page.parent)
        if parent is not None and self._children[page.parent] == 1:
            self.policy.withdraw(np.array([parent]))

    def left(self, page: Page) -> None:
        """It has no slot any more; its parent may be a leaf again."""
        self._children[page.parent] -= 1
        if not self._children[page.parent]:
            del self._children[page.parent]
            parent = self._slots.found(page.parent)
            if parent is not None:
                self._offer_leaves([parent])

    def arrive(self, slots: Sequence[int]) -> None:
        """Pages that can be found from now on."""
        page_of = self._slots.page_of
        keys = [int.from_bytes(page_of[slot].key[:8], "little") for slot in slots if self.policy.uses_keys]
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
                history = self._slots.page_of[slot].history
                if history is not None:
                    self._judge.take_over(slot, history)
                    new.remove(slot)
        if new:
            self._release(new)

    def drop(self, slot: int) -> None:
        """It can't be found any more."""
        self.policy.leave(np.array([slot]))
        self._pinned.discard(slot)

    # -- use ----------------------------------------------------------------------------------------------------

    def used(self, slots: list[int]) -> None:
        """The last of them is the last to go."""
        self.policy.hit(np.array(slots, np.int64))
        self._release(slots)
        self._offer_leaves(slots)

    def remember(self, slot: int, history: History) -> None:
        """What is known of its page elsewhere counts here too."""
        if self._judge is not None:
            self._judge.take_over(slot, history)
            self._offer_leaves([slot])

    def keep(self, slot: int) -> None:
        """A reader or a holder is about to come; from the second on it is not to be dropped anyway."""
        if not self._stays(slot):
            self.policy.withdraw(np.array([slot]))

    def settle(self, slot: int) -> None:
        """The last reader or holder has gone."""
        if slot not in self._pinned and self._is_leaf(slot):
            self.policy.offer(np.array([slot]))

    def _release(self, slots: Sequence[int]) -> None:
        if self.retains is None:
            self.policy.release(np.array(slots, np.int64), NO_USE)
            return
        for slot in slots:
            self.policy.release(np.array([slot]), self.retains.use_below(self._slots.page_of[slot].key))

    def _offer_leaves(self, slots: Iterable[int]) -> None:
        page_of, inner, readers, holds = self._slots.page_of, self._children, self._slots.readers, self._slots.holds
        leaves = [
            slot
            for slot in slots  # as ``_stays`` and ``_is_leaf`` say, for many
            if slot not in holds and slot not in readers and page_of[slot].key not in inner and slot not in self._pinned
        ]
        if leaves:
            self.policy.offer(np.array(leaves))

    def _stays(self, slot: int) -> bool:
        return self._slots.is_busy(slot) or slot in self._pinned

    def _is_leaf(self, slot: int) -> bool:
        return self._slots.page_of[slot].key not in self._children

    # -- retentions ---------------------------------------------------------------------------------------------

    def repin(self, slot: int) -> None:
        """Whether it is pinned has changed."""
        self._pin([slot])
        self._offer_leaves([slot])

    def _pin(self, slots: Iterable[int]) -> None:
        for slot in slots:
            wanted = self.retains is not None and self.retains.is_pinned(self._slots.page_of[slot].key)
            if not wanted:
                self._pinned.discard(slot)
            elif len(self._pinned) < self._num_slots // 2:
                self._pinned.add(slot)
                self.policy.withdraw(np.array([slot]))

    def rerank(self, slot: int) -> None:
        """Its page has another priority. Nothing, unless the policy is partitioned."""
        if self.retains is not None and isinstance(self.policy, Partitioned):
            use = self.retains.use_below(self._slots.page_of[slot].key)
            self.policy.assign(slot, use.priority, use.tenant)

    def partition(self, make: Callable[[str, int], EvictionPolicy]) -> None:
        """Priorities and tenants count from now on. ``make``: a policy by name, over so many slots."""
        first = self.policy
        slots = [slot for slot in self._slots.page_of if slot not in self._slots.writing]
        may_go = [slot for slot in slots if not self._stays(slot) and self._is_leaf(slot)]
        self._set_policy(Partitioned(self._num_slots, partial(alike, first, make), first, slots, may_go))
        for slot in slots:
            self.rerank(slot)

    def first_of(self, tenant: str) -> int | None:
        """The slot that a tenant should lose first. REQUIRES: the policy is partitioned."""
        assert isinstance(self.policy, Partitioned)
        return self.policy.victim_of(tenant)

    def check(self) -> None:
        """Raises InvariantError unless pages and the policy agree."""
        page_of, writing = self._slots.page_of, self._slots.writing
        if self._children != Counter(page.parent for page in page_of.values()):
            raise InvariantError("the children of a tier's pages are counted wrong")
        may_go = [slot for slot in page_of if slot not in writing and not self._stays(slot) and self._is_leaf(slot)]
        self.policy.check(np.array(sorted(may_go), np.int64))
