"""Pages that change places while a sequence runs: those below the device that its attention selects often begin to come
up, and others go, as many of each. Which they are says cache/working_set.py, from how often each was selected.
"""

from contextlib import suppress

import numpy as np

from kvpager.cache.paging_in import Arrivals
from kvpager.cache.paging_out import Departures
from kvpager.cache.sequence import Sequence
from kvpager.cache.working_set import exchange
from kvpager.errors import OutOfBlocks
from kvpager.types import TierKind

_EVERY = 8  # steps


def exchange_pages(seq: Sequence, departures: Departures, arrivals: Arrivals) -> None:
    """Called after each step of ``seq``; does nothing where its attention selects no pages, or all lie on the device.

    REQUIRES: no step on the sequence is open.
    """
    state = seq.attention
    if state is None or state.is_exact or seq.resident_limit is None or seq.away is None:
        return
    for group, away in enumerate(seq.away):
        away.num_steps += 1
        if away.num_steps < _EVERY or not away.num_out:
            continue
        away.num_steps = 0
        use, table = state.page_use(group), seq.tables[group]
        if use is None:
            continue
        below = np.flatnonzero(table.tiers() > TierKind.DEVICE)
        found = exchange(departures.unpinned(seq, group), below, len(table), use)
        went = departures.move_out(seq, group, departures.clean_or_written(seq, group, found.go), len(found.go))
        sound = [page for page in found.come.tolist() if away.copies[page].error is None]
        with suppress(OutOfBlocks):  # others were faster
            arrivals.begin(seq, group, np.array(sound[:went], np.int64))
