"""Rows of selected pages that have no block: read once through the window, and kept while they go on being selected.

A selection takes one KV head of a page, and most of it is that of the step before; the window reads all heads of a
layer at once, since that is what a checksum covers. So what was selected is copied, head by head:

    entry := (KV head, page)      row := K | V of that head and page, one layer

A sequence keeps at most as many bytes as the window has, the same for each layer; who was not used for longest goes
first. What finds no room is copied all the same, for the one step.
"""

import ctypes

import numpy as np

from kvpager.attention.page_view import PageView
from kvpager.attention.parts import window_of
from kvpager.attention.parts_in_turn import parts_in_turn
from kvpager.memory.layout import KVLayout

_PAGE_BITS = 32


class Rows:
    """Memory of equal rows, aligned to 64 bytes."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._memory = np.empty((0, row_bytes), np.uint8)

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def num_bytes(self) -> int:
        return self._memory.nbytes

    def grow(self, count: int) -> None:
        """To at least ``count`` rows; what they hold stays. Addresses change."""
        if count > len(self._memory):
            room = np.empty(count * self.row_bytes + 64, np.uint8)
            first = -room.ctypes.data % 64
            memory = room[first : first + count * self.row_bytes].reshape(count, self.row_bytes)
            memory[: len(self._memory)] = self._memory
            self._memory = memory

    def addresses(self, slots: np.ndarray) -> np.ndarray:
        return self._memory.ctypes.data + slots.astype(np.int64) * self.row_bytes


class KeptRows:
    """Of one layer. ``share``: of the window's bytes that are kept at most. ``spare`` serves all layers of a sequence
    in turn."""

    def __init__(self, layout: KVLayout, layer: int, share: float, spare: Rows) -> None:
        self._layer = layer
        self._share = share
        self._spare = spare
        self._rows = Rows(head_bytes(layout, layer))
        self._keys = np.empty(0, np.int64)  # ascending
        self._slots = np.empty(0, np.int64)
        self._used = np.empty(0, np.int64)  # when
        self._now = 0

    @property
    def num_bytes(self) -> int:
        return self._rows.num_bytes

    def cut(self, num_pages: int) -> None:
        """Forgets pages from ``num_pages`` on."""
        self._hold((self._keys & ((1 << _PAGE_BITS) - 1)) < num_pages)

    def addresses(self, view: PageView, heads: np.ndarray, pages: np.ndarray) -> np.ndarray:
        """int64 byte address of each entry's row, less what comes before that head in a part: what the address of a
        part in place would be. They hold until the next call, for whichever layer of this sequence.

        ``heads``, and for each head ``pages`` int64, ascending; all are away. Raises PagesLost.
        """
        keys = (heads << _PAGE_BITS) | pages
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        is_kept = self._keys[at] == keys if len(self._keys) else np.zeros(len(keys), np.bool_)
        self._now += 1
        self._used[at[is_kept]] = self._now
        new = np.flatnonzero(~is_kept)
        slots = self._slots_for(view, len(new))
        stays = new[: len(slots)]
        self._spare.grow(len(new) - len(slots))
        found = np.empty(len(keys), np.int64)
        found[stays] = self._rows.addresses(slots)
        found[new[len(slots) :]] = self._spare.addresses(np.arange(len(new) - len(slots)))
        self._read(view, heads[new], pages[new], found[new])
        found[is_kept] = self._rows.addresses(self._slots[np.searchsorted(self._keys, keys[is_kept])])
        self._add(keys[stays], slots)
        return found - heads * self._rows.row_bytes

    def _slots_for(self, view: PageView, count: int) -> np.ndarray:
        """At most ``count`` slots, free or of those who go. Who is used now stays."""
        room = int(window_of(view).num_bytes * self._share) // self._rows.row_bytes
        wanted = min(room, len(self._keys) + count)
        self._rows.grow(min(room, max(wanted, 2 * len(self._rows))) if wanted > len(self._rows) else 0)
        going = max(0, len(self._keys) + count - len(self._rows))
        if going:
            oldest = np.argsort(self._used, kind="stable")[:going]
            stays = self._used == self._now
            stays[np.setdiff1d(np.arange(len(self._keys)), oldest)] = True
            self._hold(stays)
        is_free = np.ones(len(self._rows), np.bool_)
        is_free[self._slots] = False
        return np.flatnonzero(is_free)[:count]

    def _read(self, view: PageView, heads: np.ndarray, pages: np.ndarray, targets: np.ndarray) -> None:
        size = self._rows.row_bytes
        for turn, parts in parts_in_turn(view, self._layer, np.unique(pages)) if len(pages) else ():
            those = np.flatnonzero(np.isin(pages, turn))
            sources = parts[np.searchsorted(turn, pages[those])] + heads[those] * size
            for target, source in zip(targets[those].tolist(), sources.tolist(), strict=True):
                ctypes.memmove(target, source, size)

    def _add(self, keys: np.ndarray, slots: np.ndarray) -> None:
        keys = np.concatenate([self._keys, keys])
        order = np.argsort(keys)
        self._keys = keys[order]
        self._slots = np.concatenate([self._slots, slots])[order]
        self._used = np.concatenate([self._used, np.full(len(slots), self._now)])[order]

    def _hold(self, stays: np.ndarray) -> None:
        self._keys, self._slots, self._used = self._keys[stays], self._slots[stays], self._used[stays]


def head_bytes(layout: KVLayout, layer: int) -> int:
    """K and V of one KV head and page of a layer."""
    head_dim = layout.groups[layout.places[layer].group].head_dim
    return 2 * layout.page_size * head_dim * layout.item_bytes
