"""Where a run of free blocks lies: against the plain search from block 0 on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.memory.contiguous import first_fit, longest_run

bitmaps = st.lists(st.booleans(), max_size=40).map(lambda bits: np.array(bits, np.bool_))


def plain_search(is_free: np.ndarray, count: int) -> int | None:
    places = range(len(is_free) - count + 1)
    return next((at for at in places if is_free[at : at + count].all()), None)


@given(bitmaps, st.integers(1, 12))
def test_the_lowest_place_where_all_blocks_are_free(is_free: np.ndarray, count: int) -> None:
    assert first_fit(is_free, count) == plain_search(is_free, count)


@given(bitmaps)
def test_the_longest_run_fits_and_none_is_longer(is_free: np.ndarray) -> None:
    longest = longest_run(is_free)
    assert plain_search(is_free, longest + 1) is None
    assert longest == 0 or plain_search(is_free, longest) is not None


@pytest.mark.parametrize(("freed", "start"), [([0, 1], 0), ([1, 2], 1), ([0, 2], None), ([0, 1, 2], 0)])
def test_freed_neighbours_are_one_run(freed: list[int], start: int | None) -> None:
    is_free = np.zeros(4, np.bool_)
    is_free[freed] = True
    assert first_fit(is_free, 2) == start
