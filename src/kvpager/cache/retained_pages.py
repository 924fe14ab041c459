"""What all retentions together want of each page, and how eviction policies and tiers come to know it.

A page is named by its content key, one for each layer group. While somebody wants something of it, there is one
``PageWishes`` for it, which knows the page's block too, so that it is found when the page comes, goes or moves.
Priorities and tenants need partitions (eviction/partitioned.py): policies are wrapped when the first of them is wanted,
and do as before until then. It knows no times and no users.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.prefix_match import page_labels
from kvpager.errors import InvariantError
from kvpager.eviction.partitioned import Partitioned, alike
from kvpager.eviction.policy import DEFAULT_PRIORITY, NO_USE, EvictionPolicy, Use
from kvpager.prefix.hashing import Scope, block_key, page_key
from kvpager.tiers.slot_book import HasBook, SlotBook
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey

if TYPE_CHECKING:
    from array import array

    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence as KVSequence


@dataclass(slots=True)
class PageWishes:
    """``pins`` and ``lives``: retentions that pin it, and that give it a time to live which has not run out."""

    key: ContentKey
    block: int | None = None  # on the device
    pins: int = 0
    lives: int = 0
    priorities: list[int] = field(default_factory=list)
    is_doomed: bool = False  # a time to live has run out: gone as soon as it can

    @property
    def is_empty(self) -> bool:
        return not (self.pins or self.lives or self.priorities or self.is_doomed)


class RetainedPages:
    """Of one cache. ``make``: an eviction policy by name, over so many blocks."""

    def __init__(self, cache: "PagedCache", make: Callable[[str, int], EvictionPolicy]) -> None:
        self._cache = cache
        self._make = make
        self._wishes: dict[ContentKey, PageWishes] = {}
        self._by_block: dict[int, PageWishes] = {}
        self._classes: dict[ContentKey, tuple[int, str]] = {}  # priority and tenant of a page's last use, if not usual
        self._policy: Partitioned | None = None
        self._books: list[tuple[LowerTier, SlotBook]] = []
        self.num_pinned = 0
        self.has_changed = False  # pages were let go of, or are pinned no longer

    def __len__(self) -> int:
        return len(self._wishes)

    # -- how others come to know --------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on policies and tiers are told."""
        self._cache.evictable.retains = self
        self._books = [(tier, tier.book) for tier in self.tiers() if isinstance(tier, HasBook)]
        for _, book in self.books():
            book.retains = self

    def tiers(self) -> Sequence[LowerTier]:
        return () if self._cache.lower is None else self._cache.lower.migration.tiers

    def books(self) -> list[tuple[LowerTier, SlotBook]]:
        """Tiers below that choose what they drop, once retentions are in use."""
        return self._books

    def partitioned(self) -> Partitioned:
        """The device's policy, in partitions from now on."""
        if self._policy is None:
            self._policy = self._partition_device()
            for _, book in self.books():
                book.partition(self._make)
        return self._policy

    @property
    def is_partitioned(self) -> bool:
        return self._policy is not None

    def _partition_device(self) -> Partitioned:
        cache, evictable = self._cache, self._cache.evictable
        blocks = cache.index.all_blocks().tolist()
        loose = [block for block in blocks if evictable.may_go(block)]
        first = evictable.policy
        policy = Partitioned(cache.pool.num_blocks, partial(alike, first, self._make), first, blocks, loose)
        evictable.policy = policy
        for seq in cache.sequences.values():
            mapped = np.concatenate([table.mapped_blocks() for table in seq.tables])
            mine = mapped[cache.pool.indexed[mapped]].tolist()
            policy.charge(mine, [seq.tenant] * len(mine))
        return policy

    # -- what is wanted -----------------------------------------------------------------------------------------

    def open(self, key: ContentKey, block: int | None) -> PageWishes:
        """The wishes for a page, which lies in ``block``."""
        wishes = self._wishes.get(key)
        if wishes is None:
            wishes = self._wishes[key] = PageWishes(key)
            self._lies_in(wishes, block)
        return wishes

    def of_tokens(self, tokens: "array[int]", scope: Scope, stop: int) -> list[list[PageWishes]]:
        """Pages 0 .. stop-1, each in all layer groups."""
        size, index, groups = self._cache.layout.page_size, self._cache.index, range(self._cache.layout.num_groups)
        key = self._cache._root_key(scope)
        labels = page_labels(tokens, scope, 0, stop, size)
        root = index.find_root(key)
        chain = [] if root is None else index.match(root, labels)
        pages = []
        for at, label in enumerate(labels):
            key = page_key(key, label[: 4 * size], label[4 * size :])
            found = [index.block(chain[at], group) if at < len(chain) else None for group in groups]
            pages.append([self.open(block_key(key, group), found[group]) for group in groups])
        return pages

    def of_sequence(self, seq: "KVSequence", first: int, stop: int, published: int) -> list[list[PageWishes]]:
        """Pages first .. stop-1 of a sequence, which stands on its page published-1."""
        index, groups = self._cache.index, range(self._cache.layout.num_groups)
        node, pages = seq._node, list[list[PageWishes]]()
        for page in range(published - 1, first - 1, -1):
            assert node is not None
            if page < stop:
                key = index.key(node)
                pages.append([self.open(block_key(key, group), index.block(node, group)) for group in groups])
            node = index.parent(node)
        return pages[::-1]

    def close(self, wishes: PageWishes) -> None:
        """Forgets a page of which nothing is wanted any more."""
        if wishes.is_empty and self._wishes.get(wishes.key) is wishes:
            del self._wishes[wishes.key]
            if wishes.block is not None:
                del self._by_block[wishes.block]

    def pin(self, wishes: PageWishes) -> None:
        wishes.pins += 1
        if wishes.pins == 1:
            self.num_pinned += 1
            self._repin(wishes)

    def unpin(self, wishes: PageWishes) -> None:
        wishes.pins -= 1
        if wishes.pins == 0:
            self.num_pinned -= 1
            self.has_changed = True
            self._repin(wishes)

    def _repin(self, wishes: PageWishes) -> None:
        if wishes.block is not None:
            self._cache.pool.kept[wishes.block] = wishes.pins > 0
            block = np.array([wishes.block])
            if wishes.pins:
                self._cache.evictable.held(block)
            else:
                self._cache.evictable.settled(block[self._cache.pool.is_cached(block)])
        for _, book in self.books():
            book.repin([wishes.key])

    def rank(self, wishes: PageWishes, priority: int) -> None:
        """One more retention gives the page this priority; the highest of them counts."""
        self.partitioned()
        wishes.priorities.append(priority)
        self._rerank(wishes.key, wishes.block, max(wishes.priorities))

    def unrank(self, wishes: PageWishes, priority: int, *, is_kept: bool) -> None:
        """One less. ``is_kept``: the page keeps its rank until it is used again."""
        wishes.priorities.remove(priority)
        if not is_kept:
            self._rerank(wishes.key, wishes.block, max(wishes.priorities, default=DEFAULT_PRIORITY))

    def _rerank(self, key: ContentKey, block: int | None, priority: int) -> None:
        policy = self.partitioned()
        if block is not None:
            policy.assign(block, priority, policy.tenant_of(block))
        tenant = self._classes.get(key, (0, ""))[1]
        self._remember(key, priority, policy.tenant_of(block) if block is not None else tenant)
        for _, book in self.books():
            book.rerank(key)

    def _remember(self, key: ContentKey, priority: int, tenant: str) -> None:
        if (priority, tenant) == (DEFAULT_PRIORITY, ""):
            self._classes.pop(key, None)
            return
        self._classes[key] = (priority, tenant)
        if len(self._classes) > 2 * self.num_places + 1024:
            here = {self._key(block) for block in self._cache.index.all_blocks().tolist()}
            stays = [each for each in self._classes if each in here or self._is_below(each)]
            self._classes = {each: self._classes[each] for each in stays}

    @property
    def num_places(self) -> int:
        """Blocks and slots of all tiers that choose what they drop."""
        return self._cache.pool.num_blocks + sum(book.num_slots for _, book in self.books())

    def is_anywhere(self, key: ContentKey) -> bool:
        """Whether a page that is wanted is on the device or below."""
        wishes = self._wishes.get(key)
        return (wishes is not None and wishes.block is not None) or self._is_below(key)

    def _is_below(self, key: ContentKey) -> bool:
        return any(tier.contains(key) for tier in self.tiers())

    def _key(self, block: int) -> ContentKey:
        index = self._cache.index
        return block_key(index.key(index.node_of_block(block)), index.group_of_block(block))

    def _lies_in(self, wishes: PageWishes, block: int | None) -> None:
        wishes.block = block
        if block is not None:
            self._by_block[block] = wishes

    # -- asked and told by the device's order (cache/evictable.py) ----------------------------------------------

    def entered(self, blocks: list[int], tenants: Sequence[str]) -> None:
        keys = [self._key(block) for block in blocks]
        for block, key in zip(blocks, keys, strict=True):
            wishes = self._wishes.get(key)
            if wishes is not None:
                self._lies_in(wishes, block)
                self._cache.pool.kept[block] = wishes.pins > 0
        if self._policy is not None:
            if tenants:
                for key, tenant in zip(keys, tenants, strict=True):
                    self._remember(key, self._priority(key), tenant)
            self._policy.charge(blocks, [self._classes.get(key, (0, ""))[1] for key in keys])

    def left(self, blocks: np.ndarray) -> None:
        self._cache.pool.kept[blocks] = False
        if self._by_block:
            for block in blocks.tolist():
                wishes = self._by_block.pop(block, None)
                if wishes is not None:
                    wishes.block = None

    def moved(self, source: int, target: int) -> None:
        wishes = self._by_block.pop(source, None)
        if wishes is not None:
            self._lies_in(wishes, target)

    def uses(self, blocks: np.ndarray, use: Use, *, is_ours: bool) -> Iterator[tuple[np.ndarray, Use]]:
        """The blocks that a request let go of, in their order, with what policies are told of each run of them.

        ``is_ours``: not of pages that came from below, whose last use was another.
        """
        self.has_changed = True
        if self._policy is None or (is_ours and not self._by_block):
            yield blocks, use
            return
        is_first = True
        for (priority, tenant), run in groupby(blocks.tolist(), lambda block: self._class(block, use, is_ours=is_ours)):
            ids = np.array(list(run))
            yield ids, replace(use, priority=priority, tenant=tenant, partial_tail=use.partial_tail and is_first)
            is_first = False

    def _class(self, block: int, use: Use, *, is_ours: bool) -> tuple[int, str]:
        wishes = self._by_block.get(block)
        ranked = None if wishes is None or not wishes.priorities else max(wishes.priorities)
        if not is_ours:
            priority, tenant = self._classes.get(self._key(block), (DEFAULT_PRIORITY, ""))
            return (priority if ranked is None else ranked), tenant
        priority = use.priority if ranked is None else ranked
        if wishes is not None:
            self._remember(wishes.key, priority, use.tenant)
        return priority, use.tenant

    # -- asked by the tiers below (tiers/slot_book.py) ----------------------------------------------------------

    def is_pinned(self, key: ContentKey) -> bool:
        wishes = self._wishes.get(key)
        return wishes is not None and wishes.pins > 0

    def use_below(self, key: ContentKey) -> Use:
        """What is told of a page in a lower tier."""
        if key not in self._classes:
            return NO_USE
        priority, tenant = self._classes[key]
        return replace(NO_USE, priority=priority, tenant=tenant)

    def _priority(self, key: ContentKey) -> int:
        wishes = self._wishes.get(key)
        return DEFAULT_PRIORITY if wishes is None else max(wishes.priorities, default=DEFAULT_PRIORITY)

    # -- order --------------------------------------------------------------------------------------------------

    def check(self, wanted: dict[ContentKey, list[int]], doomed: Container[ContentKey]) -> None:
        """Raises InvariantError unless what is noted of pages is so. ``wanted``: pins, lives and priorities by key."""
        cache = self._cache
        where = {self._key(block): block for block in cache.index.all_blocks().tolist()} if self._wishes else {}
        for key, wishes in self._wishes.items():
            counts = [wishes.pins, wishes.lives, len(wishes.priorities)]
            if counts != wanted.get(key, [0, 0, 0]) or wishes.is_doomed != (key in doomed) or wishes.is_empty:
                raise InvariantError("what retentions want of a page is counted wrong")
            if wishes.key != key or wishes.block != where.get(key):
                raise InvariantError(f"a retained page is noted in block {wishes.block}, but is in {where.get(key)}")
        if not wanted.keys() <= self._wishes.keys():
            raise InvariantError("a page that is retained is not known")
        kept = {each.block for each in self._wishes.values() if each.pins and each.block is not None}
        if set(np.flatnonzero(cache.pool.kept).tolist()) != kept:
            raise InvariantError("the pinned blocks are not those of the pinned pages")
        if self.num_pinned != sum(each.pins > 0 for each in self._wishes.values()):
            raise InvariantError("the pinned pages are counted wrong")
        if set(self._by_block) != {each.block for each in self._wishes.values()} - {None}:
            raise InvariantError("a block is noted for a page that is not retained")
