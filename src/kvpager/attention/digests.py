"""Digests of pages: per page and KV head of one layer, the centre and the radius of the keys in each channel.

The centre is their mean, the radius the distance of the farthest from it. So for every key k of the page, q.k <=
q.centre + |q|.radius, an upper bound as that of Quest (Tang et al., ICML 2024) from smallest and largest values. Two
bytes a channel and 8 more per page and head: csrc/digest.h draws how they lie. Knows nothing of sequences; who selects
is attention/page_selection.py.
"""

from types import ModuleType
from typing import Any

import numpy as np

from kvpager.attention import selective_reference as reference
from kvpager.attention.head_pages import kernels_for, part_rows
from kvpager.memory.layout import KVLayout

TILE = 16  # pages of a record
_ALIGNMENT = 64


class Digests:
    """``is_covered`` bool [pages that there is room for]: which pages have one; room grows by doubling."""

    def __init__(self, layout: KVLayout, layer: int) -> None:
        group = layout.groups[layout.places[layer].group]
        self._layout = layout
        self._layer = layer
        self._shape = group.kv_heads, layout.page_size, group.head_dim
        self._half = -(-group.head_dim // 4) * 4 * TILE  # bytes of centres, or of radii, in a record
        self._records = _aligned(0, group.kv_heads, self._record_bytes)
        self.is_covered = np.zeros(0, np.bool_)
        self.num_covered = 0

    @property
    def _record_bytes(self) -> int:
        return 2 * self._half + 2 * TILE * 4

    @property
    def num_bytes(self) -> int:
        return self._records.nbytes

    def missing(self, num_pages: int) -> np.ndarray:
        """int64, ascending: which of the first ``num_pages`` have none."""
        self._make_room(num_pages)
        if self.num_covered >= num_pages:
            return np.empty(0, np.int64)
        return np.flatnonzero(~self.is_covered[:num_pages])

    def update(self, pages: np.ndarray, addresses: np.ndarray) -> None:
        """Reads the keys of full ``pages`` [n], ascending, whose parts of this layer lie at ``addresses`` int64 [n]."""
        self._make_room(int(pages[-1]) + 1)
        kernels = self.kernels()
        if kernels is None:
            self._update_slowly(pages, addresses)
        else:
            kernels.update_digests(self.table(kernels), part_rows(kernels, self._layout, self._layer), pages, addresses)
        self.num_covered += int(np.count_nonzero(~self.is_covered[pages]))
        self.is_covered[pages] = True

    def cut(self, num_pages: int) -> None:
        """Forgets those from page ``num_pages`` on."""
        self.num_covered -= int(np.count_nonzero(self.is_covered[num_pages:]))
        self.is_covered[num_pages:] = False

    def copy(self) -> "Digests":
        other = object.__new__(Digests)
        other._layout, other._layer = self._layout, self._layer
        other._shape, other._half = self._shape, self._half
        other._records = _aligned(*self._records.shape)
        other._records[:] = self._records
        other.is_covered = self.is_covered.copy()
        other.num_covered = self.num_covered
        return other

    def kernels(self) -> ModuleType | None:
        """The native ones, where they can serve this layer."""
        return kernels_for(self._layout, self._layer)

    def table(self, kernels: Any) -> Any:
        """As the native kernels take it; borrows the memory."""
        kv_heads, _, head_dim = self._shape
        address = self._records.ctypes.data
        return kernels.DigestTable(address=address, num_tiles=len(self._records), kv_heads=kv_heads, head_dim=head_dim)

    def values(self, num_pages: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres and radii of the first pages, float32 [pages, kv_heads, head_dim] each."""
        kv_heads, _, head_dim = self._shape
        centres, radii, scales = self._views()
        pages = [self._pages_of(codes, num_pages)[:, :, :head_dim].astype(np.float32) for codes in (centres, radii)]
        by_page = scales.transpose(0, 3, 1, 2).reshape(-1, kv_heads, 2)[:num_pages]
        return pages[0] * by_page[:, :, :1], pages[1] * by_page[:, :, 1:]

    def _views(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Centres int8 and radii uint8 [tiles, kv_heads, fours, 16, 4], scales float32 [tiles, kv_heads, 2, 16]."""
        tiles, kv_heads, _ = self._records.shape
        codes = tiles, kv_heads, self._half // (4 * TILE), TILE, 4
        centres = self._records[:, :, : self._half].view(np.int8).reshape(codes)
        radii = self._records[:, :, self._half : 2 * self._half].reshape(codes)
        scales = self._records[:, :, 2 * self._half :].view(np.float32).reshape(tiles, kv_heads, 2, TILE)
        return centres, radii, scales

    def _pages_of(self, codes: np.ndarray, num_pages: int) -> np.ndarray:
        tiles, kv_heads, fours, _, _ = codes.shape
        return codes.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, kv_heads, fours * 4)[:num_pages]

    def _update_slowly(self, pages: np.ndarray, addresses: np.ndarray) -> None:
        centres, radii, scales = self._views()
        for page, address in zip(pages.tolist(), addresses.tolist(), strict=True):
            keys = reference.rows_at(address, self._shape, self._layout.dtype)[:, 0].numpy()
            found = reference.digest(keys)
            tile, lane = divmod(page, TILE)
            for to, codes in ((centres, found.centres), (radii, found.radii)):
                padded = np.zeros((len(codes), self._half // TILE), codes.dtype)
                padded[:, : codes.shape[1]] = codes
                to[tile, :, :, lane] = padded.reshape(len(codes), -1, 4)
            scales[tile, :, :, lane] = found.scales

    def _make_room(self, num_pages: int) -> None:
        room = len(self._records) * TILE
        if num_pages <= room:
            return
        tiles = max(-(-num_pages // TILE), 2 * len(self._records))
        records = _aligned(tiles, *self._records.shape[1:])
        records[: len(self._records)] = self._records
        self._records = records
        self.is_covered = np.concatenate([self.is_covered, np.zeros(tiles * TILE - room, np.bool_)])


def _aligned(tiles: int, kv_heads: int, record_bytes: int) -> np.ndarray:
    size = tiles * kv_heads * record_bytes
    room = np.empty(size + _ALIGNMENT, np.uint8)
    first = -room.ctypes.data % _ALIGNMENT
    return room[first : first + size].reshape(tiles, kv_heads, record_bytes)
