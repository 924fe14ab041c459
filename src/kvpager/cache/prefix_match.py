"""How much of a prompt is on the device already: reads the prefix index, changes nothing.

A full-attention group needs every page from the start; a windowed group only those the next token can see. A match of
n tokens is usable when every group has what it needs for a query at position n.

After the last whole page the match may go on *inside* a page: a published page whose first tokens agree is mapped as
it is, and the first write to it copies it (copy on write).
"""

from array import array
from dataclasses import dataclass

import numpy as np

from kvpager.cache.books import Books
from kvpager.memory.layout import KVLayout
from kvpager.prefix.hashing import Scope
from kvpager.prefix.index import PrefixIndex
from kvpager.types import NodeId


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """``num_tokens`` of the prompt are found: whole pages ``nodes``, and the head of ``inside`` where it is not None.

    ``first_page[g]``: the first page group g needs; earlier ones are behind its window.
    """

    num_tokens: int
    nodes: tuple[NodeId, ...]
    inside: NodeId | None
    first_page: tuple[int, ...]


def first_visible_page(length: int, window: int | None, page_size: int) -> int:
    """The first page that a query at position ``length`` sees: it sees positions above length - window."""
    return 0 if window is None else max(0, length - window + 1) // page_size


def page_labels(tokens: "array[int]", scope: Scope, start: int, stop: int, page_size: int) -> list[bytes]:
    """The index edges of pages ``start .. stop-1``: token ids as int32 bytes, then the media that begin in the page."""
    width = page_size * 4
    if stop == start + 1 and not scope.media:
        return [tokens[start * page_size : stop * page_size].tobytes()]
    raw = page_bytes(tokens, start, stop, page_size)
    labels = [raw[at : at + width] for at in range(0, len(raw), width)]
    if scope.media:
        for i in range(len(labels)):
            page = start + i
            labels[i] += scope.media_bytes(page * page_size, (page + 1) * page_size)
    return labels


def page_bytes(tokens: "array[int]", start: int, stop: int, page_size: int) -> bytes:
    """The token ids of pages ``start .. stop-1`` in one piece, int32."""
    return memoryview(tokens)[start * page_size : stop * page_size].tobytes()


class PrefixMatcher:
    def __init__(self, layout: KVLayout, index: PrefixIndex, match_inside_pages: bool, books: Books) -> None:
        self._layout = layout
        self._index = index
        self._books = books
        self._match_inside_pages = match_inside_pages
        self._windows = [group.window for group in layout.groups]
        self._from_start = (0,) * layout.num_groups
        self._nothing = PrefixMatch(0, (), None, self._from_start)
        self._windowed = [g for g, window in enumerate(self._windows) if window is not None]

    def match(self, root: NodeId | None, tokens: "array[int]", scope: Scope, limit: int) -> PrefixMatch:
        """The longest usable match of at most ``limit`` tokens."""
        if root is None or limit < 1:
            return self._nothing
        page_size = self._layout.page_size
        chain, depth = self._chain(root, tokens, scope, limit // page_size)
        if not chain and not self._match_inside_pages:
            return self._nothing
        nodes = chain[:depth]
        at = depth * page_size
        if not self._match_inside_pages or depth < len(chain) or scope.media_bytes(at, at + page_size):
            return self._result(nodes, None, at)
        rest = memoryview(tokens)[at : min(limit, at + page_size)].tobytes()
        inside = self._index.match_inside(nodes[-1] if nodes else root, rest)
        if inside is None:
            return self._result(nodes, None, at)
        return self._result(nodes, inside.node, at + inside.num_tokens)

    def _chain(self, root: NodeId, tokens: "array[int]", scope: Scope, pages: int) -> tuple[list[NodeId], int]:
        """The nodes that hold the prompt's first pages, and how many of them are usable."""
        page_size = self._layout.page_size
        if scope.media:
            chain = self._index.match(root, page_labels(tokens, scope, 0, pages, page_size))
        elif (books := self._books.native()) is None:
            chain = self._index.match_pages(root, page_bytes(tokens, 0, pages, page_size))
        else:
            chain, depth = books.find(root, tokens, pages)
            if not self._windowed:
                return chain, depth
        return chain, self._usable_depth(chain)

    def _usable_depth(self, chain: list[NodeId]) -> int:
        """The largest number of pages for which every group still has what a query behind them sees."""
        depth = len(chain)
        for group in range(self._layout.num_groups):
            if self._windows[group] is None:
                depth = min(depth, self._index.num_with_blocks(chain, group))
        if not self._windowed:
            return depth
        last_missing = {group: _last_missing(self._index, chain, group) for group in self._windowed}
        while depth and any(missing[depth] >= self._first_page(depth, g) for g, missing in last_missing.items()):
            depth -= 1  # what one group lacks at this depth another may lack at the next: all are asked again
        return depth

    def _first_page(self, depth: int, group: int) -> int:
        page_size = self._layout.page_size
        # The last whole page is always needed: the sequence stands on its node.
        return min(first_visible_page(depth * page_size, self._windows[group], page_size), max(depth - 1, 0))

    def _result(self, nodes: list[NodeId], inside: NodeId | None, num_tokens: int) -> PrefixMatch:
        if not self._windowed:
            return PrefixMatch(num_tokens, tuple(nodes), inside, self._from_start)
        first = tuple(self._first_page(len(nodes), group) for group in range(self._layout.num_groups))
        return PrefixMatch(num_tokens, tuple(nodes), inside, first)


def _last_missing(index: PrefixIndex, chain: list[NodeId], group: int) -> np.ndarray:
    """[len(chain)+1]: the last page before each depth that has no block in ``group``, or -1."""
    blocks = index.blocks_in_group(chain, group)
    missing = [page if block is None else -1 for page, block in enumerate(blocks)]
    return np.maximum.accumulate(np.array([-1, *missing]))
