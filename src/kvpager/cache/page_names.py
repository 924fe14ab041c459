"""Names the page that is computed next, so that whoever schedules sees when two would compute the same one.

    name = node of the prefix index behind which the page will hang | its tokens and media

As in the index itself, the node stands for everything before the page. A name holds until the cache is changed: nodes
are numbers that are given out again. Changes nothing, and knows no requests.
"""

from array import array
from typing import TYPE_CHECKING

from kvpager.cache.prefix_match import PrefixMatch, page_labels
from kvpager.cache.sequence import Sequence
from kvpager.prefix.hashing import Scope
from kvpager.types import NodeId, PageName

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


class PageNames:
    """``unit``: tokens that are published and reused together, one page or more."""

    def __init__(self, cache: "PagedCache", unit: int) -> None:
        self._cache = cache
        self._page_size = cache.layout.page_size
        self._unit = unit

    def next_of_running(self, seq: Sequence) -> PageName | None:
        """What it computes next; None where that will not be published, or is not known to the end."""
        node, tokens, rows = seq._node, seq.tokens, self._cache.rows
        if node is None or tokens is None:
            return None
        start = seq.length // self._unit * self._unit
        has_published = rows.published[seq.row] == start // self._page_size  # ``node`` is where the page will hang
        if not has_published or (start + self._unit) // self._page_size > rows.publish_until[seq.row]:
            return None
        return self._name(None if start == 0 else node, tokens, seq.scope, start, len(tokens))

    def next_of_match(self, match: PrefixMatch, tokens: "array[int]", scope: Scope, limit: int) -> PageName | None:
        """The first of ``tokens`` that is not found; None where ``limit`` says that it could not be reused anyway."""
        if not self._cache.has_prefix_cache:
            return None
        start = len(match.nodes) * self._page_size
        return self._name(match.nodes[-1] if match.nodes else None, tokens, scope, start, limit)

    def _name(self, node: NodeId | None, tokens: "array[int]", scope: Scope, start: int, limit: int) -> PageName | None:
        stop = start + self._unit
        if stop > limit:
            return None
        before = self._cache._root_key(scope) if node is None else int(node).to_bytes(8, "little")
        labels = page_labels(tokens, scope, start // self._page_size, stop // self._page_size, self._page_size)
        return PageName((before, *labels))
