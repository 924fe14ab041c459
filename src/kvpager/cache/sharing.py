"""Pages that two sequences map: a new one those of a match, a fork all of them; and how many blocks that takes.

Content decides what is found (cache/prefix_match.py); who writes a shared page gets a copy first (cache/copying.py).
"""

from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.prefix_match import PrefixMatch
from kvpager.cache.sequence import Sequence
from kvpager.types import FaultKind, NodeId, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def adopt(cache: "PagedCache", seq: Sequence, match: PrefixMatch, page_tier: Mapping[int, TierKind]) -> None:
    """Maps the pages of a match: minor faults. ``page_tier``: where those had been that were just brought up."""
    nodes = [*match.nodes, *([] if match.inside is None else [match.inside])]
    with cache._faults.handling(FaultKind.MINOR, sum(len(nodes) - first for first in match.first_page)):
        for group, first in enumerate(match.first_page):
            ids = np.array(cache.index.blocks_in_group(nodes[first:], group), np.int32)
            cache.pool.retain(ids)
            cache.evictable.hit(ids)
            seq.tables[group].map(first, ids)
            cache.rows.tail[group, seq.row] = ids[-1]
            cache.rows.first_page[group, seq.row] = first
    cache.rows.committed[seq.row] = cache.rows.reserved[seq.row] = match.num_tokens
    cache.rows.published[seq.row] = len(match.nodes)
    seq.prefix_tokens = match.num_tokens
    came_up = {page: tier for page, tier in page_tier.items() if page < len(match.nodes)}
    for tier in came_up.values():
        seq.prefix_by_tier[tier] = seq.prefix_by_tier.get(tier, 0) + cache.layout.page_size
    seq.prefix_by_tier[TierKind.DEVICE] = match.num_tokens - len(came_up) * cache.layout.page_size
    if match.nodes:
        seq._node = match.nodes[-1]
    if cache.lower is not None and cache.lower.writes_what_is_used_again:
        cache.lower.write_down(match_blocks(cache, match.nodes, match).tolist())


def fork(cache: "PagedCache", seq: Sequence) -> Sequence:
    """A second sequence with the same content. REQUIRES: no step on ``seq`` is open."""
    row = cache.rows.take()
    cache.rows.copy(seq.row, row)
    twin = Sequence(cache, row, None if seq.tokens is None else seq.tokens[:], seq.scope)
    twin.tables = tuple(table.copy() for table in seq.tables)
    twin.prefix_tokens, twin.prompt_tokens = seq.prefix_tokens, seq.prompt_tokens
    twin.matched_tokens = seq.matched_tokens
    cache.paging.partings.forked(seq, twin)
    twin.priority, twin.tenant = seq.priority, seq.tenant
    twin._node = seq._node
    if seq._root is not None:
        twin._root = cache.index.enter_root(cache._root_key(seq.scope))
    for table in twin.tables:
        cache.pool.retain(table.mapped_blocks())
    cache.sequences[row] = twin
    cache.retention.bind(twin, seq.wishes)
    return twin


def num_live_blocks(cache: "PagedCache", match: PrefixMatch) -> int:
    """Blocks of the whole pages of a match that are mapped already: sharing them takes nothing."""
    return len(match_blocks(cache, match.nodes, match)) - _num_cached(cache, match.nodes, match)


def num_revived_blocks(cache: "PagedCache", match: PrefixMatch) -> int:
    """Blocks of a match that are cached: mapping them takes them from what is available."""
    nodes = match.nodes if match.inside is None else (*match.nodes, match.inside)
    blocks = match_blocks(cache, nodes, match)
    return int((cache.pool.is_cached(blocks) & (cache._reclaimer.pins_yield | ~cache.pool.kept[blocks])).sum())


def _num_cached(cache: "PagedCache", nodes: List[NodeId], match: PrefixMatch) -> int:
    return int(cache.pool.is_cached(match_blocks(cache, nodes, match)).sum())


def match_blocks(cache: "PagedCache", nodes: List[NodeId], match: PrefixMatch) -> np.ndarray:
    """The blocks of the pages of a match that each group needs."""
    found: list[int] = []
    for group, first in enumerate(match.first_page):
        found.extend(block for block in cache.index.blocks_in_group(nodes[first:], group) if block is not None)
    return np.array(found, np.int64)
