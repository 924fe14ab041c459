"""Ranges of a ring never overlap, and an empty ring has room for all of its size."""

import random
from collections import deque

import numpy as np

from kvpager.tiers.ring import Ring


def test_ranges_lie_inside_and_apart() -> None:
    dice = random.Random(1)
    for size in (1, 7, 64, 100):
        ring, owner = Ring(size), np.zeros(size, np.int64)
        taken: deque[tuple[int, int]] = deque()
        for number in range(1, 2000):
            wanted = dice.randint(1, max(1, size // dice.randint(1, 5)))
            if dice.random() < 0.55 and (at := ring.take(wanted)) is not None:
                assert not owner[at : at + wanted].any()
                assert at + wanted <= size
                owner[at : at + wanted] = number
                taken.append((at, wanted))
            elif taken:
                at, wanted = taken.popleft()
                assert ring.give_back() == (at, wanted)
                owner[at : at + wanted] = 0
        while taken:
            assert ring.give_back() == taken.popleft()
        assert ring.take(size + 1) is None
        assert ring.take(size) == 0
