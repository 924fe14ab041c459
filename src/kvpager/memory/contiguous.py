"""Runs of consecutive free blocks: where the first one lies that is long enough, and how long the longest is.

Pure functions of a bitmap, bool [blocks]. They keep no list of holes that would have to be split and joined: free
neighbours are one run because they are neighbours. O(blocks).
"""

import numpy as np


def first_fit(is_free: np.ndarray, count: int) -> int | None:
    """The lowest block at which ``count`` consecutive ones are free; None where there are none. REQUIRES: count > 0."""
    starts, lengths = _runs(is_free)
    fitting = np.flatnonzero(lengths >= count)
    return int(starts[fitting[0]]) if len(fitting) else None


def longest_run(is_free: np.ndarray) -> int:
    """How many consecutive blocks are free at most."""
    return int(_runs(is_free)[1].max(initial=0))


def _runs(is_free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each run of free blocks begins, and its length; from the lowest to the highest."""
    edges = np.flatnonzero(np.diff(is_free.astype(np.int8), prepend=0, append=0))
    return edges[::2], edges[1::2] - edges[::2]
