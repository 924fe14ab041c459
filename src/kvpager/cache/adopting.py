"""A new sequence takes the pages of its prompt that are there: on the device, or where they lie below it.

    page      0        1        2        3        4        5
    index   [ 17   |   4    |   -    |   9    |   -    |  no node  ]
    tiers                      host     host     disk       disk
    mapped    17       4       host     host     disk       disk       with a resident limit of 2

Pages of the device are mapped up to the resident limit; others that a tier has are held there and come up for nobody.
The sequence stands on the last page that it maps on the device: what lies behind that gets its place in the prefix
index when the first page behind the prefix is published.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.page_copies import PageCopies, PageCopy
from kvpager.cache.prefix_match import page_labels
from kvpager.cache.prompt_walk import PromptWalk
from kvpager.cache.sequence import Sequence
from kvpager.types import FaultKind, TierKind

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


@dataclass(slots=True)
class _Found:
    """Of one layer group: pages from ``first`` on, each a block or a copy that is used already."""

    first: int
    blocks: dict[int, int] = field(default_factory=dict)
    copies: dict[int, PageCopy] = field(default_factory=dict)


def adopt_where_they_lie(cache: "PagedCache", seq: Sequence, limit: int) -> None:
    """Maps whole pages of the first ``limit`` tokens of ``seq``, as far as they are there."""
    assert seq.tokens is not None
    assert cache.lower is not None
    copies = cache.paging.copies
    assert copies is not None
    page_size = cache.layout.page_size
    depth = limit // page_size
    labels = page_labels(seq.tokens, seq.scope, 0, depth, page_size)
    while depth:
        walk = PromptWalk(cache, cache.lower.migration, cache._root_key(seq.scope), labels[:depth])
        depth = walk.usable_depth()
        found, missing = _take(walk, copies, depth, seq.resident_limit)
        if missing is None:
            if depth:
                _map(cache, seq, found, depth)
            return
        _put_back(copies, found)
        depth = missing


def _take(walk: PromptWalk, copies: PageCopies, depth: int, limit: int | None) -> tuple[list[_Found], int | None]:
    """What each group has of ``depth`` pages; and a page that a tier was said to have and can't give."""
    found = [_Found(walk.first(depth, group)) for group in range(walk.num_groups)]
    for page in range(depth):
        for group, each in enumerate(found):
            if page < each.first:
                continue
            block, copy = walk.block(page, group), None
            if block is None or (limit is not None and len(each.blocks) >= limit):
                copy = PageCopy(walk.page(page, group), is_private=False, node=walk.node(page))
                if not copies.use(copy):
                    copy = None
            if copy is not None:
                each.copies[page] = copy
            elif block is not None:
                each.blocks[page] = block
            else:
                return found, page
    return found, None


def _put_back(copies: PageCopies, found: list[_Found]) -> None:
    for each in found:
        for copy in each.copies.values():
            copies.let_go(copy)
            copies.disown(copy)


def _map(cache: "PagedCache", seq: Sequence, found: list[_Found], depth: int) -> None:
    rows, row, page_size = cache.rows, seq.row, cache.layout.page_size
    with cache._faults.handling(FaultKind.MINOR, sum(len(each.blocks) for each in found)):
        for group, each in enumerate(found):
            pages, blocks = np.array(list(each.blocks), np.int64), np.array(list(each.blocks.values()), np.int32)
            cache.pool.retain(blocks)
            cache.evictable.hit(blocks)
            seq.tables[group].map_pages(pages, blocks, TierKind.DEVICE)
            rows.first_page[group, row] = each.first
            rows.tail[group, row] = each.blocks.get(depth - 1, 0)
            cache.paging.lay_below(seq, group, each.copies)
    rows.committed[row] = rows.reserved[row] = seq.prefix_tokens = depth * page_size
    stands = max((page for each in found for page in each.blocks), default=-1)
    if stands >= 0:
        rows.published[row] = stands + 1
        seq._node = cache.index.node_of_block(next(each.blocks[stands] for each in found if stands in each.blocks))
    for page in range(depth):
        tiers = [each.copies[page].tier for each in found if page in each.copies]
        slowest = max((tier.kind for tier in tiers if tier is not None), default=TierKind.DEVICE)
        seq.prefix_by_tier[slowest] = seq.prefix_by_tier.get(slowest, 0) + page_size
