"""Which pages of a running sequence go first, and which come back in their place."""

import numpy as np
import pytest

from kvpager.eviction.page_use import HALF_LIFE, MARGIN, NEVER_SELECTED, PageUse, exchanges, order_to_go


def mass(*values: float) -> PageUse:
    return PageUse(mass=np.array(values, np.float32))


def order(use: PageUse, num_pages: int, pages: list[int] | None = None, sinks: int = 0, recent: int = 0) -> list[int]:
    chosen = np.arange(num_pages) if pages is None else np.array(pages, np.int64)
    return order_to_go(chosen, use, num_pages, sinks=sinks, recent=recent).tolist()


def swapped(
    use: PageUse, resident: list[int], others: list[int], num_pages: int = 6, at_most: int = 9
) -> list[tuple[int, int]]:
    here, there = np.array(resident, np.int64), np.array(others, np.int64)
    found = exchanges(here, there, use, num_pages, sinks=1, recent=1, at_most=at_most)
    return list(zip(found.go.tolist(), found.come.tolist(), strict=True))


def test_the_least_used_goes_first_and_the_older_of_equals() -> None:
    assert order(mass(0.3, 0.1, 0.2, 0.1, 0.3), 5) == [1, 3, 2, 0, 4]
    assert order(mass(0.3, 0.1, 0.2, 0.1, 0.3), 5, pages=[4, 3, 2]) == [3, 2, 4]


def test_where_nothing_is_known_the_older_goes_first() -> None:
    assert order(PageUse(), 5, pages=[3, 1, 2]) == [1, 2, 3]


def test_sinks_and_recent_pages_never_go() -> None:
    use = mass(0.0, 0.2, 0.5, 0.1, 0.0)
    assert order(use, 5, sinks=1, recent=1) == [3, 1, 2]
    assert order(use, 5, sinks=3, recent=3) == []


def test_pages_too_new_to_be_measured_go_last() -> None:
    assert order(mass(0.9, 0.1), 4) == [1, 0, 2, 3]
    assert order(PageUse(mass=np.array([0.9, 0.1]), last_selected=np.array([-1, -1, -1])), 4) == [2, 1, 0, 3]


def test_a_selection_counts_half_after_its_half_life() -> None:
    last = np.array([NEVER_SELECTED, 100, 100 - HALF_LIFE, 100 - 2 * HALF_LIFE], np.int64)
    use = PageUse(last_selected=last, now=100)
    assert use.scores(4).tolist() == pytest.approx([0, 1, 0.5, 0.25])
    assert order(use, 4) == [0, 3, 2, 1]


def test_mass_and_selection_add_up() -> None:
    last = np.array([10, 10, NEVER_SELECTED], np.int64)
    use = PageUse(mass=np.array([0.1, 0.2, 0.7], np.float32), last_selected=last, now=10)
    assert use.scores(3).tolist() == pytest.approx([1.1, 1.2, 0.7])


def test_columns_longer_than_the_sequence_are_cut() -> None:
    assert len(mass(0.1, 0.2, 0.7).scores(2)) == 2


def test_the_most_used_take_the_place_of_the_least_used() -> None:
    use = mass(0, 0.05, 0.3, 0.1, 0.5, 0.05)
    assert swapped(use, [0, 1, 3], [2, 4]) == [(1, 4), (3, 2)]
    assert swapped(use, [0, 1, 3], [2, 4], at_most=1) == [(1, 4)]


def test_pages_of_about_the_same_use_do_not_take_turns() -> None:
    close = mass(0, 0.2, 0.2 * (1 + MARGIN) - 0.01, 0.2, 0.2, 0)
    assert swapped(close, [1], [2]) == []
    clear = mass(0, 0.2, 0.2 * (1 + MARGIN) + 0.01, 0.2, 0.2, 0)
    assert swapped(clear, [1], [2]) == [(1, 2)]
    assert swapped(clear, [2], [1]) == []


def test_nothing_comes_in_place_of_sinks_and_recent_pages_or_without_need() -> None:
    use = mass(0, 0.1, 0.4, 0.1, 0.4, 0)
    assert swapped(use, [0, 5], [2, 4]) == []
    assert swapped(use, [1, 3], []) == []
    assert swapped(PageUse(), [1, 3], [2, 4]) == []


def test_repeated_exchanges_come_to_rest() -> None:
    rng = np.random.default_rng(0)
    use = PageUse(mass=rng.random(64).astype(np.float32))
    resident = np.arange(16, dtype=np.int64)
    rounds = 0
    while True:
        others = np.setdiff1d(np.arange(64), resident)
        found = exchanges(resident, others, use, 64, sinks=2, recent=2, at_most=4)
        if not len(found.go):
            break
        resident = np.union1d(np.setdiff1d(resident, found.go), found.come)
        rounds += 1
    assert 0 < rounds <= 16
    assert {0, 1} <= set(resident.tolist())
    assert len(resident) == 16
