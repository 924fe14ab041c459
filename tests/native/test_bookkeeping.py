"""Token ids and the release of a run of blocks, natively: as the Python they stand for, or not at all."""

from types import ModuleType

import numpy as np
import pytest

from kvpager.errors import InvariantError
from kvpager.memory.arena import HostArena
from kvpager.memory.block_pool import BlockPool
from kvpager.memory.layout import KVLayout

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=16)


@pytest.mark.parametrize("numbers", [[], [0], [5, 2**31 - 1, 0, True]])
def test_token_ids_are_read_from_a_list(native: ModuleType, numbers: list[int]) -> None:
    out = np.full(len(numbers), 7, np.int32)
    assert native.read_token_ids(numbers, out)
    assert out.tolist() == numbers


@pytest.mark.parametrize("wrong", [-1, 2**31, 2**70, 1.0, "1", None, np.int64(1)])
def test_what_is_no_token_id_is_left_to_others(native: ModuleType, wrong: object) -> None:
    assert not native.read_token_ids([1, wrong], np.zeros(2, np.int32))


def test_token_ids_go_into_as_much_room(native: ModuleType) -> None:
    with pytest.raises(ValueError, match="as long as"):
        native.read_token_ids([1, 2], np.zeros(3, np.int32))


def pool_of(states: str) -> tuple[BlockPool, np.ndarray]:
    """Blocks that are mapped: ``u`` once, ``p`` once and findable, ``2`` twice, ``h`` once and held."""
    pool = BlockPool(LAYOUT, HostArena(16, LAYOUT.block_stride))
    ids = pool.allocate(len(states))
    for at, state in enumerate(states):
        if state == "p":
            pool.publish(ids[at : at + 1])
        elif state == "2":
            pool.retain(ids[at : at + 1])
        elif state == "h":
            pool.pin(ids[at : at + 1])
    return pool, ids


@pytest.mark.parametrize("states", ["", "u", "p", "uppp", "uuu", "pu", "pup", "2", "upp2", "hpp", "u2hp"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_release_is_the_same_with_and_without(
    native: ModuleType, monkeypatch: pytest.MonkeyPatch, states: str, dtype: type
) -> None:
    told = []
    for is_native in (True, False):
        pool, ids = pool_of(states)
        if not is_native:
            monkeypatch.setattr(BlockPool, "_release_run", lambda *_: None)
        released = pool.release(ids[::-1].astype(dtype)[::-1])
        pool.check()
        order = pool.allocate(pool.num_free).tolist()  # of the free ones
        told.append((*(each.tolist() for each in (released.freed, released.cached, released.unmapped)), order))
    assert told[0] == told[1]


def test_only_plain_runs_are_released_natively(native: ModuleType) -> None:
    for states, expected in {
        "": (0, 0),
        "uupp": (2, 2),
        "p": (0, 1),
        "up2": (1, 1),
        "pu": None,
        "2p": None,
        "h": None,
    }.items():
        pool, ids = pool_of(states)
        assert pool._release_run(ids) == expected, states


@pytest.mark.parametrize("ids", [[1, 1], [-1], [16], [5]])
def test_nothing_changes_where_a_block_is_wrong(native: ModuleType, ids: list[int]) -> None:
    pool, _ = pool_of("uup")  # blocks 0 to 2
    with pytest.raises(InvariantError):
        pool.release(np.array(ids, np.int32))
    pool.check()
    assert (pool.counts().used, pool.counts().free) == (3, 13)


def test_columns_of_different_lengths_are_refused(native: ModuleType) -> None:
    pool, ids = pool_of("u")
    after = np.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="length"):
        native.release_blocks(
            ids, pool.refcount, pool.pins[1:], pool.indexed, pool._states, pool._marks, dropped=after, kept=after
        )
