"""The invariants that tie the structures of a cache together; each structure checks its own books."""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.prefix_match import page_labels
from kvpager.cache.sequence import Sequence
from kvpager.errors import InvariantError
from kvpager.memory.page_table import check_tables

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache

_NO_BLOCKS = np.empty(0, np.int32)


def check_cache(cache: "PagedCache") -> None:
    """Raises InvariantError, naming the invariant, unless all books of the cache agree."""
    for tier in cache.tiers:
        tier.check()
    cache.index.check()
    _check_counts(cache)
    _check_published(cache)
    for seq in cache.sequences.values():
        _check_sequence(cache, seq)
    cache.rows.check()
    _check_sharing(cache)
    cache.paging.check()
    cache.retention.check()
    if cache.runs is not None:
        cache.runs.check({row: seq.tables[0].mapped_blocks() for row, seq in cache.sequences.items()})


def _check_counts(cache: "PagedCache") -> None:
    mapped = check_tables([table for seq in cache.sequences.values() for table in seq.tables], cache.pool.num_blocks)
    held = [blocks for step in cache.open_steps for blocks in step.held]
    if cache.lower is not None:
        held += [np.array([*each], np.int64) for each in (cache.lower.held_blocks(), cache.paging.held_blocks())]
        cache.lower.migration.check()
    for name, blocks, kept in (
        ("refcount", mapped, cache.pool.refcount),
        ("pins", np.concatenate([_NO_BLOCKS, *held]), cache.pool.pins),
    ):
        expected = np.bincount(blocks, minlength=cache.pool.num_blocks)
        if (expected != kept).any():
            bad = int(np.argmax(expected != kept))
            raise InvariantError(f"I2: block {bad} has {name} {kept[bad]}, but {expected[bad]} hold it")


def _check_published(cache: "PagedCache") -> None:
    published = cache.index.all_blocks()
    if not np.array_equal(np.flatnonzero(cache.pool.indexed), published):
        raise InvariantError("I11: the pool and the prefix index disagree on what is published")
    cache.evictable.check()
    if not cache._reclaimer.has_made_gaps:
        _check_reach(cache, published)


def _check_reach(cache: "PagedCache", published: np.ndarray) -> None:
    """I16: before a page of a full-attention group stand all pages of its prefix."""
    index = cache.index
    full_groups = [g for g, group in enumerate(cache.layout.groups) if group.window is None]
    reached = [block for block in published.tolist() if index.group_of_block(block) in full_groups]
    for before in {index.parent(index.node_of_block(block)) for block in reached}:
        is_root = index.parent(before) == -1
        if not is_root and any(index.block(before, group) is None for group in full_groups):
            raise InvariantError(f"I16: the page of node {before} is gone, so those behind it can't be reached")


def _check_sequence(cache: "PagedCache", seq: Sequence) -> None:
    rows, row, page_size = cache.rows, seq.row, cache.layout.page_size
    reserved = int(rows.reserved[row])
    if rows.committed[row] > reserved or (rows.open_steps[row] == 0 and rows.committed[row] != reserved):
        raise InvariantError(f"sequence {row}: {rows.committed[row]} tokens committed, {reserved} reserved")
    for group, table in enumerate(seq.tables):
        first, pages = int(rows.first_page[group, row]), cache.layout.num_pages(reserved)
        away = 0 if seq.away is None else seq.away[group].num_out + seq.away[group].num_gone
        if len(table) != pages or table.num_mapped + away != pages - min(first, pages):
            raise InvariantError(f"I7: sequence {row} of {reserved} tokens has {table.num_mapped} pages")
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
    """I9: two tables share a block only with equal scope and tokens up to the shorter end of it, media included."""
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
                if other is seq or other.tokens is None:
                    continue
                end = min((page + 1) * page_size, seq.length, other.length)
                is_alike = seq.scope.up_to(end) == other.scope.up_to(end) and seq.tokens[:end] == other.tokens[:end]
                if at != page or not is_alike:
                    raise InvariantError(f"I9: block {block} is shared by sequences of different content")
