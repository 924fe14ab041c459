"""How often keys were seen of late, in a fixed space: a counting Bloom filter whose counters age.

A key has four counters, and its estimate is the least of them, as in TinyLFU (Einziger, Friedman and Manes 2017). Their
places come by double hashing (Kirsch and Mitzenmacher 2006). All counters are halved when ten times the capacity was
counted, and end at 15: what is never overtaken needs no exact figure.
"""

import numpy as np

CELLS = 4  # counters of a key
_PER_KEY = 8  # counters for each key that matters at a time: four of them are its own
_MAX = 15
_SAMPLE = 10  # times the capacity: counted before all is halved
# One-element arrays: numpy takes those quicker than scalars
_SPREAD = np.array([0x9E3779B97F4A7C15], np.uint64)  # odd, bits well mixed: keys need not be
_HALF = np.array([32], np.uint64)  # bits
_ODD = np.array([1], np.uint64)
_STEPS = np.arange(CELLS, dtype=np.uint64)
_ONE, _MOST = np.array([1], np.uint8), np.array([_MAX], np.uint8)


class FrequencySketch:
    """``capacity``: about as many keys as matter at a time."""

    def __init__(self, capacity: int) -> None:
        self._set_counters(np.zeros(_num_counters(capacity), np.uint8))
        self._until_halved = self._sample = _SAMPLE * max(1, capacity)

    def _set_counters(self, counters: np.ndarray) -> None:
        self._counters = counters
        self._one_by_one = counters.data  # a single counter is read quicker there
        self._mask = np.array([len(counters) - 1], np.uint64)

    def __len__(self) -> int:
        return len(self._counters)

    def cells(self, keys: np.ndarray) -> np.ndarray:
        """Where keys (uint64) are counted, until the sketch is resized: int64[keys, CELLS]."""
        hashed = (keys * _SPREAD).reshape(-1, 1)
        cells = (hashed | _ODD) * _STEPS  # the bits above those of a place don't matter
        cells += hashed >> _HALF
        cells &= self._mask
        return cells.view(np.int64)

    def count(self, cells: np.ndarray) -> None:
        """Keys were seen once more, given by their cells; a cell that two of them share counts once."""
        counters = self._counters
        found = counters[cells]
        found += _ONE
        np.minimum(found, _MOST, out=found)
        counters[cells] = found
        self._until_halved -= len(cells)
        if self._until_halved <= 0:
            counters >>= 1
            self._until_halved = self._sample // 2

    def estimate(self, cells: list[int]) -> int:
        counters = self._one_by_one
        least = _MAX
        for cell in cells:
            count = counters[cell]
            if count < least:
                least = count
        return least

    def resize(self, capacity: int) -> None:
        """Estimates stay as they are; rise, where there are fewer counters now."""
        before, size = self._counters, _num_counters(capacity)
        if size >= len(before):
            self._set_counters(np.tile(before, size // len(before)))
        else:  # counters that share the low bits of their place become one
            self._set_counters(before.reshape(-1, size).max(axis=0))
        self._sample = _SAMPLE * max(1, capacity)
        self._until_halved = min(self._until_halved, self._sample)


def _num_counters(capacity: int) -> int:
    """A power of two, so that a place is some bits of a hash."""
    return 1 << max(6, (_PER_KEY * capacity - 1).bit_length())
