"""The pages one tier holds during a replay: a tree in arrays, and the policy of the product that orders its leaves.

Slots are numbered from 0, as the blocks of a pool are. Pages are numbers of the trace. A level knows no requests, no
time and no other level. What may go is what the product would let go: a page that nobody uses and under which nothing
hangs here.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvpager.errors import InvariantError
from kvpager.eviction.policy import EvictionPolicy, History, JudgingPolicy, Use

_NOWHERE = -1


class Level:
    """``parent[page]``: the page it hangs under, -1 for a root. ``keys[page]``: what the policy knows it by. ``judge``:
    the policy, where it is to be asked what pages are worth."""

    def __init__(
        self,
        name: str,
        parent: np.ndarray,
        keys: np.ndarray,
        capacity: int,
        policy: EvictionPolicy,
        judge: JudgingPolicy | None = None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.policy = policy
        self.judge = judge
        self._parent = parent
        self._keys = keys
        # One entry more than there are pages: -1, the parent of the roots, is never here.
        self.slot_of = np.full(len(parent) + 1, _NOWHERE, np.int32)
        self._children = np.zeros(len(parent) + 1, np.int32)  # pages here that hang under a page, here or not
        self._page_in = np.full(capacity, _NOWHERE, np.int32)
        self._users = np.zeros(capacity, np.int32)  # requests and loads that hold a slot
        self._free = deque(range(capacity))  # the one that is free for longest is taken first
        self._ids = np.arange(capacity)
        self.num_live = 0  # slots with users
        self.history_of_gone: History | None = None  # what the judge knew of the page that ``evict`` gave last

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        return self.capacity - len(self._free)

    @property
    def num_available(self) -> int:
        """Slots a request could get: free, or held by nobody."""
        return self.capacity - self.num_live

    def depth(self, pages: np.ndarray) -> int:
        """How many of a chain of pages are here, from its first on, without a gap."""
        missing = self.slot_of[pages] < 0
        return int(missing.argmax()) if missing.any() else len(pages)

    def has_children_of(self, page: int) -> bool:
        return self._children.item(page) > 0

    def histories(self, pages: np.ndarray) -> list[History]:
        """What is known of pages that are here. REQUIRES: a judge."""
        assert self.judge is not None
        return [self.judge.history(slot) for slot in self.slot_of[pages].tolist()]

    def would_take(self, page: int, history: History) -> bool:
        """Whether a page is worth as much as the one that would have to go for it. REQUIRES: a judge."""
        assert self.judge is not None
        if self._free:
            return True
        victim = self.policy.victim()
        if victim is not None and victim == self.slot_of.item(self._parent.item(page)):  # it would hang under this one
            above = self._ids[victim : victim + 1]
            self.policy.withdraw(above)
            victim = self.policy.victim()
            self.policy.offer(above)
        return victim is not None and self.judge.worth_of(history) >= self.judge.worth(victim)

    # -- changes ------------------------------------------------------------------------------------------------

    def use(self, pages: np.ndarray) -> None:
        """A request found these pages, and holds them."""
        if len(pages):
            slots = self.slot_of[pages]
            self.policy.hit(slots)
            users = self._users[slots]
            self.num_live += len(slots) - int(np.count_nonzero(users))
            self._users[slots] = users + 1

    def evict(self, count: int) -> Iterator[int]:
        """The pages that go to make ``count`` slots free, as each of them goes; fewer where no more may go."""
        policy, slot_of, children, parents = self.policy, self.slot_of, self._children, self._parent
        for _ in range(count - len(self._free)):
            slot = policy.victim()
            if slot is None:
                return
            if self.judge is not None:
                self.history_of_gone = self.judge.history(slot)
            policy.leave(self._ids[slot : slot + 1])
            page = self._page_in.item(slot)
            slot_of[page] = _NOWHERE
            self._free.append(slot)
            parent = parents.item(page)
            left = children.item(parent) - 1
            children[parent] = left
            if not left:
                self._offer(slot_of.item(parent))
            yield page

    def enter(self, pages: np.ndarray) -> None:
        """Pages of one chain come into free slots, and are held. REQUIRES: so many slots are free, none is here."""
        count = len(pages)
        if not count:
            return
        slots = np.array([self._free.popleft() for _ in range(count)], np.int32)
        self.slot_of[pages] = slots
        self._page_in[slots] = pages
        self._children[self._parent[pages]] += 1  # the parents in a chain are distinct
        self._users[slots] = 1
        self.num_live += count
        self.policy.enter(slots, self._keys[pages])

    def take_over(self, pages: np.ndarray, histories: list[History]) -> None:
        """Pages that have entered were in another level, and a request found them. REQUIRES: a judge."""
        assert self.judge is not None
        slots = self.slot_of[pages]
        for slot, history in zip(slots.tolist(), histories, strict=True):
            self.judge.take_over(slot, history)
        self.policy.hit(slots)

    def let_go(self, pages: np.ndarray, use: Use) -> None:
        """The holder of a chain of pages is done with them."""
        slots = self.slot_of[pages[::-1]]
        users = self._users[slots] - 1
        self._users[slots] = users
        idle = slots[users == 0]
        self.num_live -= len(idle)
        if len(idle):
            if use.partial_tail and users[0]:  # somebody else still has the partial page
                use = replace(use, partial_tail=False)
            self.policy.release(idle, use)
            leaves = idle[self._children[self._page_in[idle]] == 0]
            if len(leaves):
                self.policy.offer(leaves)

    def store(self, page: int, use: Use, history: History | None) -> Iterator[int]:
        """One page from the level above comes in; yields what goes for it. It stays out where nothing may go."""
        parent = self._parent.item(page)
        above = self.slot_of.item(parent)
        self._children[parent] += 1
        if above >= 0:
            self.policy.withdraw(self._ids[above : above + 1])  # the page is about to hang under it
        yield from self.evict(1)
        if not self._free:
            self._drop_child(parent)
            return
        slot = self._free.popleft()
        self.slot_of[page] = slot
        self._page_in[slot] = page
        ids = self._ids[slot : slot + 1]
        self.policy.enter(ids, self._keys[page : page + 1])
        if self.judge is None or history is None:
            self.policy.release(ids, use)
        else:
            self.judge.take_over(slot, history)
        if not self._children.item(page):
            self.policy.offer(ids)

    def remember(self, page: int, history: History) -> None:
        """A level above, which had this page too, drops it and tells what it knew. REQUIRES: a judge."""
        assert self.judge is not None
        slot = self.slot_of.item(page)
        self.judge.take_over(slot, history)
        if not self._children.item(page):
            self._offer(slot)

    def take_out(self, pages: np.ndarray) -> None:
        """Pages of one chain that were found here leave for another level. REQUIRES: nobody holds them."""
        if not len(pages):
            return
        slots = self.slot_of[pages]
        self.policy.hit(slots)
        self.policy.leave(slots)
        self.slot_of[pages] = _NOWHERE
        self._free.extend(slots.tolist())
        parents = self._parent[pages]
        self._children[parents] -= 1
        for parent in parents[(self._children[parents] == 0) & (self.slot_of[parents] >= 0)].tolist():
            self._offer(self.slot_of.item(parent))

    def _drop_child(self, parent: int) -> None:
        self._children[parent] -= 1
        if not self._children.item(parent):
            self._offer(self.slot_of.item(parent))

    def _offer(self, slot: int) -> None:
        if slot >= 0 and not self._users.item(slot):
            self.policy.offer(self._ids[slot : slot + 1])

    def check(self) -> None:
        """Raises InvariantError unless slots, pages, children and the policy agree."""
        taken = np.flatnonzero(self._free_mask())
        pages = self._page_in[taken]
        if not np.array_equal(self.slot_of[pages], taken) or np.count_nonzero(self.slot_of >= 0) != len(taken):
            raise InvariantError(f"slots and pages of level {self.name} differ")
        children = np.bincount(self._parent[pages] + 1, minlength=len(self._children))
        if not np.array_equal(children[1:], self._children[:-1]):
            raise InvariantError(f"the children of the pages of level {self.name} are counted wrong")
        if np.count_nonzero(self._users[taken]) != self.num_live:
            raise InvariantError(f"the pages of level {self.name} that are held are counted wrong")
        self.policy.check(taken[(self._users[taken] == 0) & (self._children[pages] == 0)])

    def _free_mask(self) -> np.ndarray:
        mask = np.ones(self.capacity, bool)
        mask[self._free] = False
        return mask
