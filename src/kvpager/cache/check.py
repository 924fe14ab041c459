"""The invariants that tie the structures of a cache together; each structure checks its own books."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.prefix_match import page_labels
from kvpager.cache.sequence import Sequence
from kvpager.errors import InvariantError

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def check_cache(cache: "PagedCache") -> None:
    """Raises InvariantError, naming the invariant, unless all books of the cache agree."""
    for tier in cache.tiers:
        tier.check()
    cache.index.check()
    _check_counts(cache)
    _check_published(cache)
    for seq in cache.sequences.values():
        _check_sequence(cache, seq)
    _check_sharing(cache)
    cache.paging.check()
    cache.retention.check()


def _check_counts(cache: "PagedCache") -> None:
    mapped: Counter[int] = Counter()
    for seq in cache.sequences.values():
        for table in seq.tables:
            table.check(cache.pool.num_blocks)
            mapped.update(table.mapped_blocks().tolist())
    held: Counter[int] = Counter()
    for step in cache.open_steps:
        for blocks in step.held:
            held.update(blocks.tolist())
    if cache.lower is not None:
        held.update(cache.lower.held_blocks())
        held.update(cache.paging.held_blocks())
        cache.lower.migration.check()
    for name, counted, kept in (("refcount", mapped, cache.pool.refcount), ("pins", held, cache.pool.pins)):
        expected = np.zeros(cache.pool.num_blocks, np.int32)
        expected[list(counted)] = list(counted.values())
        if (expected != kept).any():
            bad = int(np.argmax(expected != kept))
            raise InvariantError(f"I2: block {bad} has {name} {kept[bad]}, but {expected[bad]} hold it")


def _check_published(cache: "PagedCache") -> None:
    if not np.array_equal(np.flatnonzero(cache.pool.indexed), cache.index.all_blocks()):
        raise InvariantError("I11: the pool and the prefix index disagree on what is published")
    cache.evictable.check()
    full_groups = [g for g, group in enumerate(cache.layout.groups) if group.window is None]
    for block in cache.index.all_blocks().tolist() if full_groups else []:
        node = cache.index.node_of_block(block)
        parent = cache.index.parent(node)
        if cache.index.group_of_block(block) in full_groups and cache.index.parent(parent) != -1:
            for group in full_groups:
                if cache.index.block(parent, group) is None and not cache._reclaimer.has_made_gaps:
                    raise InvariantError(f"I16: the page before block {block} is gone, so it can't be reached")


def _check_sequence(cache: "PagedCache", seq: Sequence) -> None:
    rows, row, page_size = cache.rows, seq.row, cache.layout.page_size
    reserved = int(rows.reserved[row])
    if rows.committed[row] > reserved or (rows.open_steps[row] == 0 and rows.committed[row] != reserved):
        raise InvariantError(f"sequence {row}: {rows.committed[row]} tokens committed, {reserved} reserved")
    for group, table in enumerate(seq.tables):
        first, pages = int(rows.first_page[group, row]), cache.layout.num_pages(reserved)
        away = 0 if seq.away is None else seq.away[group].num_out + seq.away[group].num_gone
        if len(table) != pages or len(table.mapped_blocks()) + away != pages - min(first, pages):
            raise InvariantError(f"I7: sequence {row} of {reserved} tokens has {len(table.mapped_blocks())} pages")
        if reserved % page_size and rows.tail[group, row] != max(0, table.snapshot()[pages - 1]):
            raise InvariantError(f"sequence {row}: the last block is not the one noted")
    if seq._node is not None:
        _check_place_in_index(cache, seq)


def _check_place_in_index(cache: "PagedCache", seq: Sequence) -> None:
    """I14: the chain of nodes a sequence stands on spells its own first pages, from the root of its scope."""
    assert seq._node is not None
    assert seq.tokens is not None
    published = int(cache.rows.published[seq.row])
    labels, node = [], seq._node
    while (label := cache.index.label(node)) is not None:
        labels.append(label)
        node = cache.index.parent(node)
    if labels[::-1] != page_labels(seq.tokens, seq.scope, 0, published, cache.layout.page_size) or node != seq._root:
        raise InvariantError(
            f"I14: sequence {seq.row} stands on {len(labels)} pages that are not its {published} first"
        )


def _check_sharing(cache: "PagedCache") -> None:
    """I9: two tables share a block only with equal scope and equal tokens up to the shorter end of it."""
    first_owner: dict[int, tuple[Sequence, int]] = {}
    page_size = cache.layout.page_size
    for seq in cache.sequences.values():
        if seq.tokens is None:
            continue
        for table in seq.tables:
            for page, block in enumerate(table.snapshot()[: len(table)].tolist()):
                if block < 0:
                    continue
                other, at = first_owner.setdefault(block, (seq, page))
                end = min((page + 1) * page_size, seq.length, other.length)
                if other is seq or other.tokens is None:
                    continue
                same = at == page and seq.scope == other.scope and seq.tokens[:end] == other.tokens[:end]
                if not same:
                    raise InvariantError(f"I9: block {block} is shared by sequences of different content")
