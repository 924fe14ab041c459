"""Where the pages of a prompt are, layer group by layer group: on the device, in a tier, or nowhere.

It looks at no more pages than the answer needs: those of full-attention groups as far as they reach, and then what the
windows see at the end of that. It asks the prefix index and what is known of the tiers, and changes nothing.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvpager.cache.prefix_match import first_visible_page
from kvpager.prefix.hashing import block_key, page_key
from kvpager.tiers.migration import Migration
from kvpager.tiers.tier import Page
from kvpager.types import ContentKey, NodeId, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

NOWHERE = TierKind.NONE


@dataclass(frozen=True, slots=True)
class MissingPage:
    """Page ``index`` of a prompt in layer group ``group``: not on the device, but in ``tier``."""

    index: int
    group: int
    page: Page
    tier: TierKind


class PromptWalk:
    """Of one prompt, whose pages have these ``labels``."""

    def __init__(self, cache: "PagedCache", migration: Migration, root_key: ContentKey, labels: List[bytes]) -> None:
        self._page_size = cache.layout.page_size
        self._windows = [group.window for group in cache.layout.groups]
        self._migration = migration
        self._labels = labels
        self._index = cache.index
        root = cache.index.find_root(root_key)
        self._chain: list[NodeId] = [] if root is None else cache.index.match(root, list(labels))
        self._blocks = [cache.index.blocks_in_group(self._chain, group) for group in range(len(self._windows))]
        last = cache.index.key(self._chain[-1]) if self._chain else root_key
        self._root_key = root_key
        self._keys = [last]  # of the last page of the chain, and of those behind it

    @property
    def num_groups(self) -> int:
        return len(self._windows)

    def usable_depth(self) -> int:
        """The largest number of pages behind which every group has, or can get, what a query sees."""
        depth = self._reach()
        while depth and (gap := self._first_gap(depth)) is not None:
            depth = gap  # every depth between sees it too
        return depth

    def _reach(self) -> int:
        """How many pages from the start no full-attention group lacks."""
        full = [group for group, window in enumerate(self._windows) if window is None]
        if not full:
            return len(self._labels)
        columns = [self._blocks[group] for group in full]
        page = min(column.index(None) if None in column else len(column) for column in columns)
        while page < len(self._labels) and all(self._place(page, group) is not NOWHERE for group in full):
            page += 1
        return page

    def _first_gap(self, depth: int) -> int | None:
        """The first page that a query behind ``depth`` pages would see and some windowed group lacks."""
        gaps = [
            page
            for group, window in enumerate(self._windows)
            if window is not None
            for page in range(self.first(depth, group), depth)
            if self._place(page, group) is NOWHERE
        ]
        return min(gaps, default=None)

    def first(self, depth: int, group: int) -> int:
        """The first page of ``group`` that is needed behind ``depth`` pages."""
        first = first_visible_page(depth * self._page_size, self._windows[group], self._page_size)
        return min(first, max(depth - 1, 0))

    def _place(self, page: int, group: int) -> TierKind:
        if self._is_resident(page, group):
            return TierKind.DEVICE
        tier = self._migration.find(block_key(self._key(page), group))
        return NOWHERE if tier is None else tier.kind

    def _is_resident(self, page: int, group: int) -> bool:
        return self.block(page, group) is not None

    def block(self, page: int, group: int) -> int | None:
        """The device's own block of a page."""
        return self._blocks[group][page] if page < len(self._chain) else None

    def node(self, page: int) -> NodeId | None:
        """Where a page has its place in the prefix index."""
        return self._chain[page] if page < len(self._chain) else None

    def _key(self, page: int) -> ContentKey:
        """Of a page of the prompt; of page -1, the root's."""
        if page < len(self._chain):
            return self._index.key(self._chain[page]) if page >= 0 else self._root_key
        width = 4 * self._page_size
        while len(self._chain) + len(self._keys) <= page + 1:
            label = self._labels[len(self._chain) + len(self._keys) - 1]
            self._keys.append(page_key(self._keys[-1], label[:width], label[width:]))
        return self._keys[page + 1 - len(self._chain)]

    def missing(self, depth: int) -> list[MissingPage]:
        """In the order in which they are useful: the first pages of all groups first."""
        wanted = [
            (page, group)
            for group in range(len(self._windows))
            for page in range(self.first(depth, group), depth)
            if not self._is_resident(page, group)
        ]
        return [
            MissingPage(page, group, self.page(page, group), self._place(page, group)) for page, group in sorted(wanted)
        ]

    def unknown_keys(self, depth: int) -> list[ContentKey]:
        """Keys of the pages behind ``depth``, as far as the prompt goes."""
        return [
            block_key(self._key(page), group)
            for page in range(depth, len(self._labels))
            for group in range(len(self._windows))
        ]

    def page(self, page: int, group: int) -> Page:
        """What the tiers call it."""
        return Page(block_key(self._key(page), group), block_key(self._key(page - 1), group), group)
