"""Pages whose bytes name all that they depend on: STAMP (tests/stamp.py) with whole pages at a time and no hashing.

A position's number is a chain over scope, weights and all tokens up to it; each 8 bytes of its rows are that number
times an odd constant of their own (layer, head, K or V, place in the row). A scale of a quantized page is made of the
number of the last position that was written to the page. So pages can be written and compared in a few operations, and
a row, a layer or a page at a wrong place shows as well as one of another sequence.
"""

from collections.abc import Sequence

import numpy as np

from kvpager.memory.layout import KVLayout

_MASK = 2**64 - 1
_FACTOR = 0x9E3779B97F4A7C15


def chain(seed: int, tokens: Sequence[int], start: int = 0) -> list[int]:
    """The numbers of the positions of ``tokens`` that follow the number ``seed``."""
    numbers = []
    for token in tokens[start:]:
        seed = ((seed ^ (token + 1)) * _FACTOR + (seed >> 29)) & _MASK
        numbers.append(seed)
    return numbers


class PageStamps:
    """``blocks`` in all calls: uint8 [any number, block_stride]. REQUIRES of the layout: rows are whole 8 bytes."""

    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self._words: list[np.ndarray] = []  # per group: [slot, word of the slot] in words of a block
        self._scales: list[np.ndarray] = []  # per group: [scale] in half words of a block
        for group, shape in enumerate(layout.groups):
            width = shape.head_dim * layout.item_bytes
            assert width % 8 == 0
            rows = [(i, h, half) for i in range(len(shape.layers)) for h in range(shape.kv_heads) for half in range(2)]
            starts = np.array([[layout.slot_offset(group, *row, s) for row in rows] for s in range(layout.page_size)])
            words = starts[:, :, None] // 8 + np.arange(width // 8)
            self._words.append(words.reshape(layout.page_size, -1))
            scales = [layout.scale_offset(group, *row) // 4 for row in rows] if layout.is_quantized else []
            self._scales.append(np.array(scales, np.int64))
        most = max(words.shape[1] for words in self._words)
        odd = np.arange(1, 2 * most * layout.num_groups, 2, dtype=np.uint64) * np.uint64(_FACTOR)
        self._factors = odd.reshape(layout.num_groups, most)

    def write(self, blocks: np.ndarray, group: int, ids: np.ndarray, slots: np.ndarray, numbers: list[int]) -> None:
        """Rows of positions in ascending order, position i in slot ``slots[i]`` of block ``ids[i]``."""
        blocks.view(np.uint64)[ids[:, None], self._words[group][slots]] = self._rows(group, numbers)
        if len(self._scales[group]):  # where a block is named twice, the last position counts
            blocks.view(np.uint32)[ids[:, None], self._scales[group]] = self._scale_values(group, numbers)

    def wrong(
        self, blocks: np.ndarray, group: int, ids: np.ndarray, slots: np.ndarray, numbers: list[int]
    ) -> int | None:
        """Which of the positions holds other bytes, the first one."""
        found = blocks.view(np.uint64)[ids[:, None], self._words[group][slots]]
        bad = (found != self._rows(group, numbers)).any(axis=1)
        return int(np.argmax(bad)) if bad.any() else None

    def page(self, group: int, numbers: list[int]) -> np.ndarray:
        """What ``pages`` finds in a block that holds the full page of these positions."""
        return np.concatenate([self._rows(group, numbers).ravel(), self._scale_values(group, numbers[-1:]).ravel()])

    def pages(self, blocks: np.ndarray, group: int, ids: list[int]) -> np.ndarray:
        """All that is stamped of some blocks, a row for each."""
        words = blocks.view(np.uint64)[ids][:, self._words[group].ravel()]
        scales = self._scales[group]
        return np.concatenate([words, blocks.view(np.uint32)[ids][:, scales]], axis=1) if len(scales) else words

    def _rows(self, group: int, numbers: list[int]) -> np.ndarray:
        return np.array(numbers, np.uint64)[:, None] * self._factors[group, : self._words[group].shape[1]]

    def _scale_values(self, group: int, numbers: list[int]) -> np.ndarray:
        wide = np.array(numbers, np.uint64)[:, None] * self._factors[group, : len(self._scales[group])]
        return (wide >> np.uint64(32)).astype(np.uint32)
