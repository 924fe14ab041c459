"""How often keys were seen of late, in a fixed space: a count-min sketch whose counters age.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications" (2005): a key
has a counter in each of four rows, and its estimate is the least of them. Rows are indexed by double hashing (Kirsch
and Mitzenmacher 2006). All counters are halved when ten times the capacity was counted, and end at 15: what is never
overtaken needs no exact figure (Einziger, Friedman and Manes 2017).
"""

from collections.abc import Iterable

import numpy as np

ROWS = 4
_MAX = 15
_SAMPLE = 10  # times the capacity: counted before all is halved
_SPREAD = 0x9E3779B97F4A7C15  # odd, bits well mixed: keys need not be
_64_BITS = 2**64 - 1
_32_BITS = 2**32 - 1

Cells = tuple[int, int, int, int]


class FrequencySketch:
    """``capacity``: about as many keys as matter at a time."""

    def __init__(self, capacity: int) -> None:
        self._width = _width(capacity)
        self._counters = bytearray(ROWS * self._width)
        self._until_halved = self._sample = _SAMPLE * max(1, capacity)

    def __len__(self) -> int:
        return len(self._counters)

    def cells(self, key: int) -> Cells:
        """Where a key is counted, until the sketch is resized."""
        hashed = (key * _SPREAD) & _64_BITS
        first, step, width = hashed >> 32, (hashed & _32_BITS) | 1, self._width
        mask = width - 1
        return (
            first & mask,
            width + ((first + step) & mask),
            2 * width + ((first + 2 * step) & mask),
            3 * width + ((first + 3 * step) & mask),
        )

    def count(self, keys: Iterable[Cells]) -> None:
        """Each of these was seen once more. Keys by their cells."""
        counters = self._counters
        for cells in keys:
            for cell in cells:
                if counters[cell] < _MAX:
                    counters[cell] += 1
            self._until_halved -= 1
            if self._until_halved == 0:
                halved = np.frombuffer(counters, np.uint8)
                halved >>= 1
                self._until_halved = self._sample // 2

    def estimate(self, cells: Cells) -> int:
        counters = self._counters
        one, two, three, four = cells
        return min(counters[one], counters[two], counters[three], counters[four])

    def resize(self, capacity: int) -> None:
        """Estimates stay as they are; rise, where there are fewer counters now."""
        rows = np.frombuffer(self._counters, np.uint8).reshape(ROWS, self._width)
        self._width = width = _width(capacity)
        if width >= rows.shape[1]:
            rows = np.tile(rows, width // rows.shape[1])
        else:  # counters that share the low bits of their place become one
            rows = rows.reshape(ROWS, -1, width).max(axis=1)
        self._counters = bytearray(rows.tobytes())
        self._sample = _SAMPLE * max(1, capacity)
        self._until_halved = min(self._until_halved, self._sample)


def _width(capacity: int) -> int:
    """Counters in a row: a power of two, so that a place is some bits of a hash."""
    return 1 << max(4, (2 * capacity - 1).bit_length())
