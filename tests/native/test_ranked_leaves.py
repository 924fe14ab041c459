"""The evictable blocks of an LRU order, natively: what Python's are, one operation after the other."""

from array import array
from types import ModuleType

import numpy as np
import pytest

from kvpager.eviction.ranked_leaves import RankedLeaves


@pytest.mark.parametrize("num_blocks", [0, 3000])  # the native ones know how many to expect, and take more
@pytest.mark.parametrize("num_ranks", [20, 10**6])
def test_native_leaves_keep_the_same_order(native: ModuleType, num_blocks: int, num_ranks: int) -> None:
    ours, theirs = RankedLeaves(), native.RankedLeaves(num_blocks)
    generator = np.random.default_rng(1)
    ranks = array("q", [0]) * 3000
    for share in (0.9, 0.1, 0.6, 0.0):
        for block, rank in generator.integers(0, (3000, num_ranks), (4000, 2)).tolist():
            ranks[block] = rank
            what = generator.random()
            for leaves in (ours, theirs):
                if what < share:
                    leaves.offer(block, rank)
                elif what < 0.93:
                    leaves.withdraw(block)
                elif what < 0.95 and (block + 1) % 3000 not in leaves:
                    leaves.move(block, (block + 1) % 3000)
                elif what < 0.98:
                    leaves.withdraw_all([block, (block + 7) % 3000])
                elif share:
                    leaves.offer_all([block], ranks)
            assert ours.lowest() == theirs.lowest()
        assert ours.ordered() == theirs.ordered()
        assert len(ours) == len(theirs)
        assert [block for block in range(3001) if block in theirs] == sorted(ours.ordered())


def test_native_leaves_refuse_what_they_cannot_rank(native: ModuleType) -> None:
    leaves = native.RankedLeaves(4)
    for block, rank in ((-1, 0), (2**32, 0), (0, -(2**63))):
        with pytest.raises(IndexError):
            leaves.offer(block, rank)
    with pytest.raises(IndexError):
        leaves.offer_all([4], array("q", [1, 2, 3, 4]))
    assert leaves.lowest() is None
    leaves.offer(3, 2**63 - 1)  # and these they can
    leaves.offer(0, 1 - 2**63)
    leaves.offer_all([2], array("q", [1, 2, 3, 4]))
    assert leaves.ordered() == [0, 2, 3]
