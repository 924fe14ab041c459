"""The pool's books: every call does all of its batch or none of it, and the counts agree afterwards."""

import numpy as np
import pytest

from kvpager import ConfigError, InvariantError, KVLayout, OutOfBlocks
from kvpager.memory.arena import HostArena
from kvpager.memory.block import BlockState
from kvpager.memory.block_pool import BlockPool

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=4, dtype="float32", page_size=4)


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


def make_pool(num_blocks: int = 8, *, max_blocks: int | None = None, poison: bool = False) -> BlockPool:
    return BlockPool(LAYOUT, HostArena(num_blocks, LAYOUT.block_stride, max_blocks), poison=poison)


@pytest.fixture
def pool() -> BlockPool:
    return make_pool()


def books(pool: BlockPool) -> tuple[object, ...]:
    """Everything a call could change, to compare before and after one that raises."""
    pool.check()
    return (
        pool.counts(),
        pool.num_free,
        [pool.state(block) for block in range(pool.num_blocks)],
        pool.refcount.tolist(),
        pool.pins.tolist(),
        pool.indexed.tolist(),
    )


def cached(pool: BlockPool, count: int) -> np.ndarray:
    """``count`` blocks that are findable and in no table."""
    blocks = pool.allocate(count)
    pool.publish(blocks)
    pool.release(blocks)
    return blocks


# --------------------------------------------------------------------------------------------- giving out, giving back


def test_a_new_pool_is_free(pool: BlockPool) -> None:
    counts = pool.counts()
    assert (counts.total, counts.free, counts.used, counts.cached, counts.moving, counts.pinned) == (8, 8, 0, 0, 0, 0)
    assert counts.utilisation == 0.0
    pool.check()


def test_a_batch_comes_in_rising_order_and_is_mapped_once(pool: BlockPool) -> None:
    assert pool.allocate(3).tolist() == [0, 1, 2]
    assert pool.allocate(2).tolist() == [3, 4]
    assert pool.refcount.tolist() == [1] * 5 + [0] * 3
    assert pool.counts().utilisation == 5 / 8
    pool.check()


def test_the_last_released_is_given_out_first(pool: BlockPool) -> None:
    pool.allocate(8)
    pool.release(ids(5, 2, 7))
    assert pool.allocate(2).tolist() == [5, 2]
    assert pool.allocate(1).tolist() == [7]
    pool.check()


def test_no_blocks_is_a_batch_too(pool: BlockPool) -> None:
    assert len(pool.allocate(0)) == 0
    for call in (pool.retain, pool.pin, pool.unpublish):
        assert len(call(ids())) == 0
    for call in (pool.release, pool.unpin):
        assert len(call(ids()).freed) == len(call(ids()).cached) == 0
    pool.check()


def test_a_full_pool_says_what_was_needed_and_what_there_is(pool: BlockPool) -> None:
    cached(pool, 2)
    pool.pin(pool.allocate(3))
    before = books(pool)
    with pytest.raises(OutOfBlocks) as caught:
        pool.allocate(4)
    error = caught.value
    assert (error.needed, error.free, error.pinned, error.reclaimable, error.total) == (4, 3, 3, 2, 8)
    assert "4 blocks needed, but 3 are free and 2 reclaimable of 8" in str(error)
    assert books(pool) == before
    assert len(pool.allocate(3)) == 3


def test_a_block_is_free_when_its_last_mapping_goes(pool: BlockPool) -> None:
    blocks = pool.allocate(2)
    pool.retain(blocks)
    assert len(pool.release(blocks).freed) == 0
    assert pool.counts().used == 2
    assert pool.release(blocks).freed.tolist() == blocks.tolist()
    assert pool.counts().free == 8
    pool.check()


def test_a_released_findable_block_is_cached_and_can_be_mapped_again(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.publish(block)
    released = pool.release(block)
    assert (released.freed.tolist(), released.cached.tolist()) == ([], block.tolist())
    assert pool.is_cached(block).tolist() == [True]
    assert pool.retain(block).tolist() == block.tolist()
    assert pool.retain(block).tolist() == []  # it was used already
    assert pool.counts().used == 1
    pool.check()


def test_released_blocks_come_back_in_the_order_given(pool: BlockPool) -> None:
    blocks = pool.allocate(4)
    pool.publish(ids(0, 2))
    released = pool.release(blocks[::-1])
    assert released.cached.tolist() == [2, 0]
    assert released.freed.tolist() == [3, 1]


# --------------------------------------------------------------------------------------------------------------- holds


def test_a_held_block_is_moving_until_the_last_hold_goes(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.pin(block)
    pool.pin(block)
    released = pool.release(block)
    assert len(released.freed) == len(released.cached) == 0
    assert pool.state(0) is BlockState.MOVING
    assert pool.counts().pinned == pool.counts().moving == 1
    assert len(pool.unpin(block).freed) == 0
    assert pool.unpin(block).freed.tolist() == [0]
    assert pool.counts().free == 8
    pool.check()


def test_a_moving_block_is_never_given_out(pool: BlockPool) -> None:
    blocks = pool.allocate(8)
    pool.pin(blocks[:1])
    pool.release(blocks)
    assert sorted(pool.allocate(7).tolist()) == list(range(1, 8))
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.unpin(blocks[:1])
    assert pool.allocate(1).tolist() == [0]


def test_a_held_findable_block_settles_as_cached(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.publish(ids(0))
    pool.pin(block)
    pool.release(block)
    assert pool.unpin(block).cached.tolist() == [0]
    assert pool.pin(block).tolist() == [0]  # a transfer takes a cached block
    assert pool.state(0) is BlockState.MOVING
    assert pool.unpin(block).cached.tolist() == [0]
    pool.check()


def test_a_moving_block_can_be_mapped_again(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.pin(block)
    pool.release(block)
    assert pool.retain(block).tolist() == []
    assert pool.state(0) is BlockState.USED
    assert len(pool.unpin(block).freed) == 0
    pool.check()


def test_unpublishing_a_moving_block_lets_it_settle_as_free(pool: BlockPool) -> None:
    block = pool.allocate(1)
    pool.publish(ids(0))
    pool.pin(block)
    pool.release(block)
    assert pool.unpublish(block).tolist() == []
    assert pool.unpin(block).freed.tolist() == [0]
    pool.check()


# ------------------------------------------------------------------------------------------------- what may be written


def test_shared_published_and_held_blocks_are_write_protected_and_private_ones_are_not(pool: BlockPool) -> None:
    private, shared, published, held = pool.allocate(4).tolist()
    pool.retain(ids(shared))
    pool.publish(ids(published))
    pool.pin(ids(held))  # an open step may be reading it
    assert pool.is_write_protected(ids(private, shared, published, held)).tolist() == [False, True, True, True]
    pool.release(ids(shared))
    pool.unpin(ids(held))
    assert pool.is_write_protected(ids(private, shared, held)).tolist() == [False, False, False]


# ------------------------------------------------------------------------------------------------------- wrong batches


def test_a_double_free_is_refused_whole(pool: BlockPool) -> None:
    blocks = pool.allocate(3)
    pool.release(blocks[:1])
    before = books(pool)
    with pytest.raises(InvariantError, match="block 0 is FREE and was released: freed twice"):
        pool.release(ids(1, 0, 2))
    assert books(pool) == before
    pool.release(ids(1, 2))


BATCH_CALLS = ["retain", "release", "pin", "unpin", "publish", "unpublish"]


@pytest.mark.parametrize("verb", BATCH_CALLS)
def test_a_block_named_twice_in_a_batch_is_refused_whole(pool: BlockPool, verb: str) -> None:
    blocks = pool.allocate(4)
    pool.retain(blocks)
    pool.pin(blocks)
    pool.pin(blocks)
    if verb != "publish":
        pool.publish(blocks)
    before = books(pool)
    with pytest.raises(InvariantError, match="block 2 is named twice"):
        getattr(pool, verb)(ids(0, 2, 3, 2))
    assert books(pool) == before
    getattr(pool, verb)(ids(0, 2, 3))  # the control: without the repetition it is a good batch
    pool.check()


@pytest.mark.parametrize("verb", BATCH_CALLS)
@pytest.mark.parametrize("block", [-1, 8, 2**31 - 1])
def test_a_block_outside_the_pool_is_refused_whole(pool: BlockPool, verb: str, block: int) -> None:
    pool.pin(pool.allocate(2))
    if verb != "publish":
        pool.publish(ids(0))
    before = books(pool)
    with pytest.raises(InvariantError, match=rf"block {block} is not in the pool \(0 to 7\)"):
        getattr(pool, verb)(ids(0, block))
    assert books(pool) == before
    getattr(pool, verb)(ids(0))


@pytest.mark.parametrize(
    ("verb", "reason"),
    [
        ("retain", "can't take MAP"),
        ("release", "freed twice"),
        ("pin", "is free and was pinned"),
        ("unpin", "is not pinned"),
        ("unpublish", "is not published"),
    ],
)
def test_a_free_block_in_a_batch_is_refused_whole(pool: BlockPool, verb: str, reason: str) -> None:
    pool.pin(pool.allocate(2))
    pool.publish(ids(0))
    before = books(pool)
    with pytest.raises(InvariantError, match=reason):
        getattr(pool, verb)(ids(0, 5))
    assert books(pool) == before
    getattr(pool, verb)(ids(0))


def test_only_a_used_block_can_be_published_and_only_once(pool: BlockPool) -> None:
    pool.allocate(2)
    pool.publish(ids(0))
    before = books(pool)
    for block in (0, 3):
        with pytest.raises(InvariantError, match=f"block {block} is .* and can't be published"):
            pool.publish(ids(1, block))
        assert books(pool) == before
    pool.publish(ids(1))


def test_a_batch_of_many_is_searched_for_repetitions(pool: BlockPool) -> None:
    """The scratch marks of one call must not confuse the next."""
    blocks = pool.allocate(8)
    for _ in range(3):
        pool.retain(blocks)
        pool.retain(blocks[::-1])
        pool.release(blocks[3:6])
        pool.release(ids(7, 0, 6, 1, 2))
    pool.check()


# ------------------------------------------------------------------------------------------------------ size and moves


def test_growing_adds_free_blocks(pool: BlockPool) -> None:
    pool = make_pool(4, max_blocks=8)
    pool.allocate(3)
    pool.resize(8)
    assert pool.counts().free == 5
    pool.check()
    assert sorted(pool.allocate(5).tolist()) == [3, 4, 5, 6, 7]


def test_growing_past_what_was_reserved_is_refused_and_changes_nothing() -> None:
    pool = make_pool(4, max_blocks=6)
    pool.allocate(2)
    before = books(pool)
    with pytest.raises(ConfigError, match="can grow to 6 blocks, not 7"):
        pool.resize(7)
    assert pool.num_blocks == 4
    assert books(pool) == before
    pool.resize(6)
    pool.check()


def test_shrinking_below_live_blocks_is_refused_and_changes_nothing(pool: BlockPool) -> None:
    pool.release(pool.allocate(8)[:6])
    before = books(pool)
    with pytest.raises(InvariantError, match="above the new size is not free"):
        pool.resize(7)
    assert books(pool) == before
    pool.release(ids(7))
    pool.resize(7)
    assert pool.counts().total == 7
    pool.check()


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_has_at_least_one_block(pool: BlockPool, size: int) -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        pool.resize(size)
    with pytest.raises(ConfigError, match="at least one block"):
        make_pool(0)
    pool.check()


def test_a_moved_block_keeps_counts_state_and_bytes(pool: BlockPool) -> None:
    blocks = pool.allocate(8)
    pool.retain(ids(6))
    pool.publish(ids(7))
    pool.arena.blocks[6], pool.arena.blocks[7] = 66, 77
    pool.release(ids(0, 3, 7))
    pool.move(ids(6, 7), ids(0, 3))
    pool.check()
    assert pool.refcount[[0, 3, 6, 7]].tolist() == [2, 0, 0, 0]
    assert [pool.state(b).name for b in (0, 3, 6, 7)] == ["USED", "CACHED", "FREE", "FREE"]
    assert set(pool.arena.blocks[0].tolist()) == {66}
    assert set(pool.arena.blocks[3].tolist()) == {77}
    pool.resize(6)
    pool.check()
    assert len(blocks) == 8


@pytest.mark.parametrize(
    ("sources", "targets"), [((1,), (2,)), ((1,), (1,)), ((3,), (7,))], ids=["taken", "same", "held"]
)
def test_blocks_move_from_unheld_to_free_ones_only(pool: BlockPool, sources: tuple[int], targets: tuple[int]) -> None:
    pool.allocate(4)
    pool.pin(ids(3))
    before = books(pool)
    with pytest.raises(InvariantError):
        pool.move(ids(*sources), ids(*targets))
    assert books(pool) == before
    pool.move(ids(1), ids(7))
    pool.check()


# ------------------------------------------------------------------------------------------------ addresses and memory


def test_addresses_are_aligned_and_a_stride_apart(pool: BlockPool) -> None:
    assert [pool.address(b) - pool.address(0) for b in range(8)] == [b * LAYOUT.block_stride for b in range(8)]
    assert pool.address(0) % 64 == 0


def test_a_slot_address_finds_the_byte_it_names(pool: BlockPool) -> None:
    import ctypes

    pool.arena.blocks[3] = np.arange(LAYOUT.block_stride) % 251
    address = pool.slot_address(3, layer=1, head=1, half=1, slot=2)
    offset = LAYOUT.slot_offset(0, 1, 1, 1, 2)
    assert address == pool.address(3) + offset
    row = ctypes.string_at(address, LAYOUT.item_bytes * 4)
    assert list(row) == [(offset + i) % 251 for i in range(16)]


@pytest.mark.parametrize("block", [-1, 8])
def test_a_block_outside_the_pool_has_no_address(pool: BlockPool, block: int) -> None:
    with pytest.raises(ConfigError, match="not in the pool"):
        pool.address(block)


def test_with_poison_a_freed_block_reads_as_nan_and_a_cached_one_keeps_its_bytes() -> None:
    pool = make_pool(poison=True)
    blocks = pool.allocate(2)
    pool.arena.blocks[blocks] = 1
    pool.publish(ids(1))
    pool.release(blocks)
    assert np.isnan(pool.arena.blocks[0].view(np.float32)).all()
    assert set(pool.arena.blocks[1].tolist()) == {1}
    pool.unpublish(ids(1))
    assert np.isnan(pool.arena.blocks[1].view(np.float32)).all()


def test_with_poison_a_write_to_freed_memory_is_found_when_the_block_is_given_out_again() -> None:
    pool = make_pool(2, poison=True)
    pool.allocate(2)  # never freed: nothing is known of its bytes
    pool.release(ids(0, 1))
    pool.arena.blocks[1, 17] = 0
    assert pool.allocate(1).tolist() == [0]
    before = books(pool)
    with pytest.raises(InvariantError, match="block 1 was written after it had been freed"):
        pool.allocate(1)
    assert books(pool) == before


# ---------------------------------------------------------------------------------------------------- check finds lies


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda pool: pool.refcount.__setitem__(0, -1), "negative"),
        (lambda pool: pool.refcount.__setitem__(5, 1), "say USED"),
        (lambda pool: pool.refcount.__setitem__(0, 0), "say FREE"),
        (lambda pool: pool.pins.__setitem__(5, 1), "say MOVING"),
        (lambda pool: pool.indexed.__setitem__(5, True), "say CACHED"),
        (lambda pool: pool._counts.__setitem__(0, 3), "counts per state"),
        (lambda pool: pool._free.__setitem__(0, 6), "free list"),
    ],
)
def test_check_finds_a_book_that_lies(pool: BlockPool, lie: object, reason: str) -> None:
    pool.allocate(2)
    pool.check()
    lie(pool)
    with pytest.raises(InvariantError, match=reason):
        pool.check()


# ----------------------------------------------------------------------------------------------------- against a model


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_agree_with_a_model_of_counts(seed: int) -> None:
    random = np.random.default_rng(seed)
    pool = make_pool(12, max_blocks=12)
    refcount, pins, indexed = [0] * 12, [0] * 12, [False] * 12
    for turn in range(2000):
        verb = random.choice(["allocate", "retain", "release", "pin", "unpin", "publish", "unpublish"])
        batch = random.permutation(12)[: random.integers(0, 5)].astype(np.int32)
        used = [count > 0 for count in refcount]
        alive = [r > 0 or p > 0 or i for r, p, i in zip(refcount, pins, indexed, strict=True)]
        where = f"seed={seed} turn={turn} {verb}({batch.tolist()})"
        if verb == "allocate":
            count = len(batch)
            if count > alive.count(False):
                with pytest.raises(OutOfBlocks):
                    pool.allocate(count)
                continue
            for block in pool.allocate(count).tolist():
                assert not alive[block], where
                refcount[block] = 1
            pool.check()
            continue
        legal = {
            "retain": alive,
            "release": used,
            "pin": alive,
            "unpin": [p > 0 for p in pins],
            "publish": [(u or p > 0) and not i for u, p, i in zip(used, pins, indexed, strict=True)],
            "unpublish": indexed,
        }[verb]
        before = books(pool)
        call = getattr(pool, verb)
        if not all(legal[block] for block in batch):
            with pytest.raises(InvariantError):
                call(batch)
            assert books(pool) == before, where
            continue
        call(batch)
        for block in batch.tolist():
            refcount[block] += {"retain": 1, "release": -1}.get(verb, 0)
            pins[block] += {"pin": 1, "unpin": -1}.get(verb, 0)
            indexed[block] = {"publish": True, "unpublish": False}.get(verb, indexed[block])
        pool.check()
        assert (pool.refcount.tolist(), pool.pins.tolist(), pool.indexed.tolist()) == (refcount, pins, indexed), where
