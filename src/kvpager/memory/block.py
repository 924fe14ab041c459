"""The states of a block, and the only table of moves between them. Nothing else assigns a state.

FREE    nobody holds it, nothing findable in it
USED    at least one page table maps it
CACHED  no table maps it and nothing holds it, but its content is findable in the prefix index
MOVING  no table maps it, but an open step or a transfer may still touch its bytes

      ALLOCATE            DROP                       A block whose last mapping goes while a step is open
FREE ----------> USED -----------> FREE              must not be given out again before the step has ended:
                 | ^ ^                               it waits in MOVING (open cases O-02, O-16).
            KEEP | | | MAP
                 v | |
      EVICT     CACHED <---------- SETTLE_CACHED
FREE <----------   |                    |
                   | PIN                |
                   v                    |
 USED -- HOLD --> MOVING ---------------+---- SETTLE_FREE --> FREE
"""

from enum import IntEnum

import numpy as np

from kvpager.errors import InvariantError


class BlockState(IntEnum):
    FREE = 0
    USED = 1
    CACHED = 2
    MOVING = 3


class BlockEvent(IntEnum):
    ALLOCATE = 0  # given to a page table
    MAP = 1  # mapped by one more table
    DROP = 2  # the last mapping went; nothing findable, nothing holds it
    KEEP = 3  # the last mapping went; the content stays findable
    HOLD = 4  # the last mapping went; a step or transfer still holds it
    PIN = 5  # an unmapped, findable block is taken by a transfer
    SETTLE_FREE = 6  # the last hold went; nothing findable
    SETTLE_CACHED = 7  # the last hold went; the content is findable
    EVICT = 8  # its content is given up


_ILLEGAL = 255
_TABLE: dict[tuple[BlockState, BlockEvent], BlockState] = {
    (BlockState.FREE, BlockEvent.ALLOCATE): BlockState.USED,
    (BlockState.USED, BlockEvent.MAP): BlockState.USED,
    (BlockState.CACHED, BlockEvent.MAP): BlockState.USED,
    (BlockState.MOVING, BlockEvent.MAP): BlockState.USED,
    (BlockState.USED, BlockEvent.DROP): BlockState.FREE,
    (BlockState.USED, BlockEvent.KEEP): BlockState.CACHED,
    (BlockState.USED, BlockEvent.HOLD): BlockState.MOVING,
    (BlockState.CACHED, BlockEvent.PIN): BlockState.MOVING,
    (BlockState.MOVING, BlockEvent.SETTLE_FREE): BlockState.FREE,
    (BlockState.MOVING, BlockEvent.SETTLE_CACHED): BlockState.CACHED,
    (BlockState.CACHED, BlockEvent.EVICT): BlockState.FREE,
}
_NEXT = np.full((len(BlockEvent), len(BlockState)), _ILLEGAL, np.uint8)
for (_state, _event), _next in _TABLE.items():
    _NEXT[_event, _state] = _next


def following(event: BlockEvent) -> np.ndarray:
    """uint8 [states]: the state after each state, 255 where ``event`` can't happen; for the native kernels."""
    return _NEXT[event]


def advance(states: np.ndarray, ids: np.ndarray, event: BlockEvent) -> None:
    """Moves ``states[ids]`` along ``event``; raises InvariantError and changes nothing if one of them can't."""
    before = states[ids]
    after = _NEXT[event].take(before)
    if np.count_nonzero(after == _ILLEGAL):  # for few blocks much faster than any()
        bad = int(np.argmax(after == _ILLEGAL))
        raise InvariantError(f"block {ids[bad]} is {BlockState(before[bad]).name} and can't take {event.name}")
    states[ids] = after
