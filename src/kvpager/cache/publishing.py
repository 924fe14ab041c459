"""Full pages become findable: each gets its place in the prefix index, or gives way to one of the same content."""

from collections.abc import Sequence as List
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.copying import repoint
from kvpager.cache.prefix_match import page_bytes, page_labels
from kvpager.cache.sequence import Sequence
from kvpager.memory.page_table import UNMAPPED
from kvpager.types import NodeId

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.step import Step


def publish(cache: "PagedCache", sequences: List[Sequence], pages: List[int]) -> None:
    """Makes each sequence's full pages up to ``pages`` findable; content that is findable already is shared."""
    rows, page_size = cache.rows, cache.layout.page_size
    where = [seq.row for seq in sequences]
    firsts = rows.published[where].tolist()
    singles: list[int] = []
    parts: list[np.ndarray] = []
    payers: tuple[list[str], list[str]] = [], []  # of the blocks of all parts, and of the single ones
    for seq, first, stop in zip(sequences, firsts, pages, strict=True):
        assert seq.tokens is not None
        num_parts, num_singles = len(parts), len(singles)
        if seq.away is not None or seq.scope.media:
            singles += _place_each(cache, seq, first, page_labels(seq.tokens, seq.scope, first, stop, page_size))
        elif stop == first + 1:  # as in an answer: at once would cost more than by itself
            singles += _place_one(cache, seq, first, seq.tokens[first * page_size : stop * page_size].tobytes())
        else:
            parts += _place(cache, seq, first, page_bytes(seq.tokens, first, stop, page_size))
        if cache.evictable.retains is not None:
            payers[0].extend([seq.tenant] * sum(map(len, parts[num_parts:])))
            payers[1].extend([seq.tenant] * (len(singles) - num_singles))
    parts.append(np.array(singles, np.int32))
    fresh = np.concatenate(parts)
    rows.published[where] = pages
    cache.pool.publish(fresh)
    cache.evictable.entered(fresh, payers[0] + payers[1])
    for seq in sequences if cache.retention.is_used else ():
        cache.retention.grown(seq)
    if cache.lower is not None:
        cache.lower.published(fresh.tolist())


def publish_step(cache: "PagedCache", step: "Step", growing: np.ndarray) -> None:
    """``publish`` of those sequences of a step whose places in it are ``growing``; the step has ended well.

    Natively where nobody is told of each page; in Python where pages are there already, or where are no kernels.
    """
    at = 0
    if (books := cache.books.native()) is not None and _is_plain(cache):
        while at < len(growing):
            at, num_pages = books.publish(step.batch.rows, step.sequences, growing, at, len(growing))
            cache.index.hung(num_pages * cache.layout.num_groups)
            if at < len(growing):
                _publish_of_step(cache, step, growing[at : at + 1])
                at += 1
        return
    _publish_of_step(cache, step, growing)


def _publish_of_step(cache: "PagedCache", step: "Step", places: np.ndarray) -> None:
    rows = step.batch.rows[places]
    full = np.minimum(cache.rows.committed[rows] // cache.layout.page_size, cache.rows.publish_until[rows])
    publish(cache, [step.sequences[at] for at in places.tolist()], full.tolist())


def _is_plain(cache: "PagedCache") -> bool:
    """Nobody but the pool and the index takes note of a page that becomes findable."""
    evictable = cache.evictable
    return (
        evictable.lru is not None
        and evictable.retains is None
        and not cache.retention.is_used
        and cache.lower is None
        and cache.index.watcher is None
    )


def _place(cache: "PagedCache", seq: Sequence, first: int, content: bytes) -> list[np.ndarray]:
    """The pages of ``seq`` from ``first`` on get their places. Returns the blocks that the index has taken.

    What follows a page that nobody has published is new too: all of it is hung into the index at once.
    """
    index, width = cache.index, 4 * cache.layout.page_size
    assert seq._node is not None
    known = index.match_pages(seq._node, content)
    held = [block for page, node in enumerate(known, first) for block in _hold(cache, seq, page, node)]
    if known:
        seq._node = known[-1]
        content = content[len(known) * width :]
    taken = [np.array(held, np.int32)]
    if not content:
        return taken
    at = first + len(known)
    stop = at + len(content) // width
    blocks = [table.entries[at:stop] for table in seq.tables]
    if cache.has_windows and any(int(each.min()) < 0 for each in blocks):  # some were given back
        labels = [content[begin : begin + width] for begin in range(0, len(content), width)]
        return [*taken, np.array(_place_each(cache, seq, at, labels), np.int32)]
    seq._node = index.hang(seq._node, content, blocks)
    return [*taken, *blocks]


def _place_one(cache: "PagedCache", seq: Sequence, page: int, label: bytes) -> list[int]:
    """The same for one page, which mostly nobody else has."""
    assert seq._node is not None
    blocks = [int(table.entries[page]) for table in seq.tables]
    node = cache.index.add_page(seq._node, label, blocks) if min(blocks) >= 0 else None
    if node is None:
        return _place_each(cache, seq, page, [label])
    seq._node = node
    return blocks


def _place_each(cache: "PagedCache", seq: Sequence, first: int, labels: list[bytes]) -> list[int]:
    """The same page by page: some have media, or lie below the device, or are not there any more."""
    index, node, fresh = cache.index, seq._node, list[int]()
    for page, label in enumerate(labels, first):
        assert node is not None
        if seq.away is not None:  # it may do without the page before, which somebody else has left here
            cache.evictable.got_child(node)
        node = index.open_child(node, label)
        fresh += _hold(cache, seq, page, node)
    seq._node = node
    return fresh


def _hold(cache: "PagedCache", seq: Sequence, page: int, node: NodeId) -> list[int]:
    """The page's blocks hold what ``node`` stands for, or those that do already take their place."""
    fresh = []
    for group, table in enumerate(seq.tables):
        block = int(table.entries[page])
        if block < 0:
            if block != UNMAPPED:  # it lies below the device: where it belongs when it comes back
                assert seq.away is not None
                seq.away[group].copies[page].node = node
            continue
        known = cache.index.block(node, group)
        if known is None:
            cache.index.attach(node, group, block)
            fresh.append(block)
        elif known != block:
            _share_instead(cache, seq, group, page, block, known)
    return fresh


def _share_instead(cache: "PagedCache", seq: Sequence, group: int, page: int, block: int, known: int) -> None:
    """Another sequence published the same content meanwhile: page ``page`` maps its block, and ours goes."""
    cache.evictable.shared(cache.pool.retain(np.array([known], np.int32)))
    repoint(cache, seq, group, page, block, known)
    cache._deduplicated += 1
