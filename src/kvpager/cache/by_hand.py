"""K and V rows in and out of a sequence by hand, without a model: what ``Sequence.write`` and ``read`` do.

Quantized layouts read back what was stored, rounded (tiers/quantized.py says by how much). Their scales are shared by a
page, so overwriting a part of a page reads the rows behind that part first and writes them again.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvpager.errors import ConfigError
from kvpager.tiers.row_access import Rows

if TYPE_CHECKING:
    from kvpager.cache.paged_cache import PagedCache
    from kvpager.cache.sequence import Sequence


def write_rows(cache: "PagedCache", seq: "Sequence", start: int, k: Rows, v: Rows) -> None:
    """Rows from position ``start`` on; pages that others can see are copied first, new ones are faulted in."""
    cache.check_usable(seq)
    cache.check_idle(seq, "write to")
    count = cache.access.check_rows(k, v)
    length, stop = seq.length, start + count
    if not 0 <= start <= length:
        raise ConfigError(f"can't write from position {start}: the sequence has {length} tokens, and no gaps are kept")
    if count == 0:
        return
    _check_visible(cache, seq, start, stop)
    published = int(cache.rows.published[seq.row]) * cache.layout.page_size
    if start < length and seq.away is not None:
        raise ConfigError("a sequence with pages away from the device is not overwritten: append to it, or truncate it")
    if start < published:
        raise ConfigError(
            f"can't write from position {start}: positions before {published} are published, and what token ids "
            "can find is never overwritten; truncate first, or make the sequence without token ids"
        )
    if stop > length:
        with cache.step({seq: stop - length}):
            cache.make_writable(seq, start, length)
            _write(cache, seq, start, stop, k, v)
    else:
        cache.make_writable(seq, start, stop)
        kept_until = min(length, cache.layout.num_pages(stop) * cache.layout.page_size)
        kept = read_rows(cache, seq, stop, kept_until) if cache.layout.is_quantized and kept_until > stop else None
        _write(cache, seq, start, stop, k, v)
        if kept is not None:
            _write(cache, seq, stop, kept_until, *kept)


def read_rows(cache: "PagedCache", seq: "Sequence", start: int, stop: int) -> tuple[Rows, Rows]:
    """Copies of positions ``start .. stop-1``."""
    cache.check_usable(seq)
    if not 0 <= start <= stop <= seq.length:
        raise ConfigError(f"can't read positions {start} to {stop}: the sequence has {seq.length} tokens")
    _check_visible(cache, seq, start, stop)
    positions = np.arange(start, stop)
    blocks = [_blocks_at(cache, seq, place.group, positions) for place in cache.layout.places]
    return cache.access.read(list(range(cache.layout.layers)), blocks, positions % cache.layout.page_size)


def _write(cache: "PagedCache", seq: "Sequence", start: int, stop: int, k: Rows, v: Rows) -> None:
    positions = np.arange(start, stop)
    slots = positions % cache.layout.page_size
    for layer, place in enumerate(cache.layout.places):
        cache.access.write(layer, _blocks_at(cache, seq, place.group, positions), slots, k[layer], v[layer])


def _blocks_at(cache: "PagedCache", seq: "Sequence", group: int, positions: np.ndarray) -> np.ndarray:
    return seq.tables[group].snapshot()[positions // cache.layout.page_size]


def _check_visible(cache: "PagedCache", seq: "Sequence", start: int, stop: int) -> None:
    """Raises ConfigError where pages of these positions have no block."""
    if seq.away is not None and start < stop:
        first, last = start // cache.layout.page_size, cache.layout.num_pages(min(stop, seq.length))
        if any((table.snapshot()[first:last] < 0).any() for table in seq.tables):
            raise ConfigError(
                f"some of positions {start} to {stop} are not on the device: bring them up (cache.paging.page_in), "
                "unless they were given back for good"
            )
    for first in cache.rows.first_page[:, seq.row].tolist():
        if start < stop and start // cache.layout.page_size < first:
            raise ConfigError(
                f"positions before {first * cache.layout.page_size} were given back: they lie before the window"
            )
