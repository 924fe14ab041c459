"""Frames and block views made by hand or drawn at random, and caches whose blocks are looked at."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvpager.metrics.block_view import BlockView
from kvpager.metrics.frames import Frame

_COLUMNS = {"state": (np.uint8, 3), "owner": (np.uint16, 65535), "mappings": (np.uint8, 255), "tokens": (np.uint8, 255)}


def views(num_blocks: int) -> st.SearchStrategy[BlockView]:
    """A few values only, so that many blocks stay as they are from one view to the next."""

    def column(kind: type, most: int) -> st.SearchStrategy[np.ndarray]:
        values = st.sampled_from([0, 1, most])
        return st.lists(values, min_size=num_blocks, max_size=num_blocks).map(lambda found: np.array(found, kind))

    return st.builds(BlockView, **{name: column(*of) for name, of in _COLUMNS.items()})


def view(*states: int, owner: int = 0) -> BlockView:
    state = np.array(states, np.uint8)
    return BlockView(state, np.where(state == 1, owner, 0).astype(np.uint16), state, state)


def frame(seq: int, blocks: BlockView, time: float | None = None, **figures: Any) -> Frame:
    when = float(seq) if time is None else time
    return Frame(seq, when, {"seq": seq, "time": when, "activity": [], **figures}, blocks)
