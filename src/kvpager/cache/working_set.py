"""Which of a sequence's pages go first when not all of them fit on the device. Pure: numbers in, page numbers out.

    page      0       1 ..................... n-r    n-r+1 ... n
            sink         by use, or newest first        recent

The sink and the most recent pages go last: every query attends to them. Of the others, where the use of pages is
measured, those that are used least go first. Otherwise all of them are read in every step, so which of them stay makes
no difference to what is read; the newest go, so that those that were there first stay and none is ever exchanged for
another. Only attention that selects pages gains by exchanging them.
"""

import numpy as np

from kvpager.eviction.page_use import Exchange, PageUse, exchanges, order_to_go

SINKS = 1  # pages
RECENT = 4
EXCHANGED = 16  # pages at once: few enough to come up beside the steps


def order(pages: np.ndarray, num_pages: int, use: np.ndarray | None = None) -> np.ndarray:
    """``pages`` (ascending) of a sequence of ``num_pages``, in the order in which they should go.

    ``use`` float32: the share of the attention that each page had lately (AttentionState.page_use).
    """
    is_last = (pages < SINKS) | (pages >= num_pages - RECENT)
    if use is None:
        first = pages[~is_last][::-1]
    else:
        first = order_to_go(pages[~is_last], PageUse(use), num_pages, sinks=0, recent=0)
    last = pages[is_last]
    return np.concatenate([first, last[last >= SINKS], last[last < SINKS]])


def exchange(resident: np.ndarray, below: np.ndarray, num_pages: int, use: np.ndarray) -> Exchange:
    """Which pages ``below`` the device should take the blocks of which ``resident`` ones, which may go."""
    found = PageUse(use)
    return exchanges(resident, below, found, num_pages, sinks=SINKS, recent=RECENT, at_most=EXCHANGED)
