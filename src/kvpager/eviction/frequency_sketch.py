"""How often keys were seen of late, in a fixed space: a counting Bloom filter whose counters age.

A key has four counters, and its estimate is the least of them, as in TinyLFU (Einziger, Friedman and Manes 2017). Their
places are the top bits of products, which takes few array operations (Dietzfelbinger and others, "A reliable randomized
algorithm for the closest-pair problem", 1997). All counters are halved when ten times the capacity was counted, and end
at 15: what is never overtaken needs no exact figure.
"""

import numpy as np

CELLS = 4  # counters of a key
_PER_KEY = 8  # counters for each key that matters at a time: four of them are its own
_MAX = 15
_SAMPLE = 10  # times the capacity: counted before all is halved
# Odd, bits well mixed: keys need not be
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95], np.uint64)
_COUNTED = np.minimum(np.arange(_MAX + 1, dtype=np.uint8) + 1, _MAX).astype(np.uint8)  # what a counter becomes


class FrequencySketch:
    """``capacity``: about as many keys as matter at a time."""

    def __init__(self, capacity: int) -> None:
        self._set_counters(np.zeros(_num_counters(capacity), np.uint8))
        self._until_halved = self._sample = _SAMPLE * max(1, capacity)

    def _set_counters(self, counters: np.ndarray) -> None:
        self._counters = counters
        self._one_by_one = counters.data  # a single counter is read quicker there
        self._shift = np.array([65 - len(counters).bit_length()], np.uint64)  # an array: quicker than a scalar

    def __len__(self) -> int:
        return len(self._counters)

    def cells(self, keys: np.ndarray) -> np.ndarray:
        """Where keys (uint64) are counted, until the sketch is resized: int64[keys, CELLS]."""
        cells = keys.reshape(-1, 1) * _FACTORS
        cells >>= self._shift
        return cells.view(np.int64)

    def count(self, cells: np.ndarray) -> None:
        """Keys were seen once more, given by their cells; a cell that two of them share counts once."""
        counters = self._counters
        counters[cells] = _COUNTED.take(counters.take(cells))
        self._until_halved -= len(cells)
        if self._until_halved <= 0:
            counters >>= 1
            self._until_halved = self._sample // 2

    def estimate(self, cells: list[int]) -> int:
        counters = self._one_by_one
        one, two, three, four = cells
        return min(counters[one], counters[two], counters[three], counters[four])

    def resize(self, capacity: int) -> None:
        """Estimates stay as they are; rise, where there are fewer counters now."""
        before, size = self._counters, _num_counters(capacity)
        if size >= len(before):
            self._set_counters(np.repeat(before, size // len(before)))
        else:  # counters that share the top bits of their place become one
            self._set_counters(before.reshape(size, -1).max(axis=1))
        self._sample = _SAMPLE * max(1, capacity)
        self._until_halved = min(self._until_halved, self._sample)


def _num_counters(capacity: int) -> int:
    """A power of two, so that a place is some bits of a hash."""
    return 1 << max(6, (_PER_KEY * capacity - 1).bit_length())
