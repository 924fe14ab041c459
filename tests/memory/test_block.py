"""Every move between the states of a block: the eleven that are legal, and all others."""

import itertools

import numpy as np
import pytest

from kvpager import InvariantError
from kvpager.memory.block import BlockEvent, BlockState, advance

FREE, USED, CACHED, MOVING = BlockState

LEGAL = {
    (FREE, BlockEvent.ALLOCATE): USED,
    (USED, BlockEvent.MAP): USED,
    (CACHED, BlockEvent.MAP): USED,
    (MOVING, BlockEvent.MAP): USED,
    (USED, BlockEvent.DROP): FREE,
    (USED, BlockEvent.KEEP): CACHED,
    (USED, BlockEvent.HOLD): MOVING,
    (CACHED, BlockEvent.PIN): MOVING,
    (MOVING, BlockEvent.SETTLE_FREE): FREE,
    (MOVING, BlockEvent.SETTLE_CACHED): CACHED,
    (CACHED, BlockEvent.EVICT): FREE,
}
ILLEGAL = [pair for pair in itertools.product(BlockState, BlockEvent) if pair not in LEGAL]


def _name(value: object) -> str:
    return value.name if isinstance(value, BlockState | BlockEvent) else str(value)


def test_legal_and_illegal_moves_are_all_moves() -> None:
    assert len(LEGAL) + len(ILLEGAL) == len(BlockState) * len(BlockEvent) == 36


@pytest.mark.parametrize(("before", "event"), LEGAL, ids=_name)
def test_a_legal_move_ends_in_its_state(before: BlockState, event: BlockEvent) -> None:
    states = np.array([FREE, before, MOVING], np.uint8)
    advance(states, np.array([1]), event)
    assert states.tolist() == [FREE, LEGAL[before, event], MOVING]


@pytest.mark.parametrize(("before", "event"), ILLEGAL, ids=_name)
def test_an_illegal_move_raises_and_names_block_state_and_event(before: BlockState, event: BlockEvent) -> None:
    states = np.array([FREE, before], np.uint8)
    with pytest.raises(InvariantError, match=f"block 1 is {before.name} and can't take {event.name}"):
        advance(states, np.array([1]), event)
    assert states.tolist() == [FREE, before]


def test_a_batch_with_one_illegal_move_changes_none_of_its_blocks() -> None:
    states = np.array([FREE, FREE, USED, FREE], np.uint8)
    with pytest.raises(InvariantError, match="block 2"):
        advance(states, np.arange(4), BlockEvent.ALLOCATE)
    assert states.tolist() == [FREE, FREE, USED, FREE]
    advance(states, np.array([0, 1, 3]), BlockEvent.ALLOCATE)
    assert states.tolist() == [USED] * 4


def test_no_live_page_can_be_evicted_and_no_moving_block_can_be_given_out() -> None:
    """Two rows of the table that silent wrong answers come from."""
    assert (USED, BlockEvent.EVICT) in ILLEGAL
    assert (MOVING, BlockEvent.EVICT) in ILLEGAL
    assert (MOVING, BlockEvent.ALLOCATE) in ILLEGAL
    assert (CACHED, BlockEvent.ALLOCATE) in ILLEGAL
