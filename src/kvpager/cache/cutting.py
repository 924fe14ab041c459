"""Where a sequence is shortened: by its user, or because a step over it failed."""

from typing import TYPE_CHECKING

from kvpager.cache.giving_back import give_back
from kvpager.cache.prefix_match import first_visible_page
from kvpager.cache.sequence import Sequence
from kvpager.errors import ConfigError

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache


def truncate(cache: "PagedCache", seq: Sequence, length: int) -> None:
    """See Sequence.truncate. REQUIRES: no step on ``seq`` is open."""
    committed = seq.length
    if not 0 <= length <= committed:
        raise ConfigError(f"can't truncate to {length}: the sequence has {committed} tokens")
    for group, window in enumerate(cache._windows):
        if first_visible_page(length, window, cache.layout.page_size) < cache.rows.first_page[group, seq.row]:
            raise ConfigError(
                f"can't truncate to {length}: pages that a token there needs lie before the window and were given "
                f"back; open the cache with a larger rewind (it is {cache._rewind} tokens)"
            )
    cache.paging.partings.check_cut(seq, length)
    cut(cache, seq, length)
    cache.retention.cut(seq)
    if seq.tokens is not None:
        del seq.tokens[length:]


def cut(cache: "PagedCache", seq: Sequence, length: int) -> None:
    """Pages behind ``length`` tokens are given back, and nothing behind them is published or computed any more."""
    row, page_size = seq.row, cache.layout.page_size
    pages = cache.layout.num_pages(length)
    for group, table in enumerate(seq.tables):
        cache.paging.partings.unmapped(seq, group, pages, len(table))
        give_back(cache, seq, table.unmap(pages, len(table))[::-1])
        cache.rows.tail[group, row] = max(0, table.snapshot()[pages - 1]) if pages and len(table) == pages else 0
    cache.paging.partings.cut(seq, length)
    while (published := int(cache.rows.published[row])) > length // page_size or not can_stand(seq, published):
        assert seq._node is not None
        seq._node = cache.index.parent(seq._node)
        cache.rows.published[row] -= 1
    if cache._has_only_windows and 0 < cache.rows.published[row] <= cache.rows.first_page[:, row].min():
        cache._leave_index(seq)
    cache.rows.committed[row] = min(cache.rows.committed[row], length)
    cache.rows.reserved[row] = length
    seq.prefix_tokens = min(seq.prefix_tokens, length)


def can_stand(seq: Sequence, pages: int) -> bool:
    """Whether the node behind ``pages`` pages stays as long as ``seq`` maps them: one of its blocks is mapped."""
    return pages == 0 or seq.away is None or any(table.snapshot()[pages - 1] >= 0 for table in seq.tables)
