"""How often keys were seen of late, in a fixed space: a counting Bloom filter whose counters age.

A key has four counters, and its estimate is the least of them, as in TinyLFU (Einziger, Friedman and Manes 2017). Their
places come by double hashing (Kirsch and Mitzenmacher 2006). All counters are halved when ten times the capacity was
counted, and end at 15: what is never overtaken needs no exact figure.
"""

from collections.abc import Iterable

import numpy as np

_PER_KEY = 8  # counters for each key that matters at a time: four of them are its own
_MAX = 15
_SAMPLE = 10  # times the capacity: counted before all is halved
_SPREAD = 0x9E3779B97F4A7C15  # odd, bits well mixed: keys need not be
_64_BITS = 2**64 - 1
_32_BITS = 2**32 - 1

Cells = tuple[int, int, int, int]


class FrequencySketch:
    """``capacity``: about as many keys as matter at a time."""

    def __init__(self, capacity: int) -> None:
        self._counters = bytearray(_num_counters(capacity))
        self._mask = len(self._counters) - 1
        self._until_halved = self._sample = _SAMPLE * max(1, capacity)

    def __len__(self) -> int:
        return len(self._counters)

    def cells(self, key: int) -> Cells:
        """Where a key is counted, until the sketch is resized."""
        hashed, mask = (key * _SPREAD) & _64_BITS, self._mask
        first, step = hashed >> 32, (hashed & _32_BITS) | 1
        return first & mask, (first + step) & mask, (first + 2 * step) & mask, (first + 3 * step) & mask

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
        before = np.frombuffer(self._counters, np.uint8)
        size = _num_counters(capacity)
        if size >= len(before):
            counters = np.tile(before, size // len(before))
        else:  # counters that share the low bits of their place become one
            counters = before.reshape(-1, size).max(axis=0)
        self._counters = bytearray(counters.tobytes())
        self._mask = size - 1
        self._sample = _SAMPLE * max(1, capacity)
        self._until_halved = min(self._until_halved, self._sample)


def _num_counters(capacity: int) -> int:
    """A power of two, so that a place is some bits of a hash."""
    return 1 << max(6, (_PER_KEY * capacity - 1).bit_length())
