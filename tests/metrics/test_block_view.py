"""What the columns say of a pool, checked against the cache's own counts and a plain walk over all tables."""

import numpy as np
import pytest

from kvpager.assemble import open_cache
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.memory.block import BlockState
from kvpager.memory.layout import KVLayout, LayerSpec
from kvpager.metrics.block_view import MAX_OWNER, NOBODY, BlockView, OwnerNumbers, view_pool
from tests.cache.paged import open_limited, over_host
from tests.stamp import T

PAGE = 4
PLAIN = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=PAGE)
MIXED = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=8)], page_size=PAGE)


def computed(cache: PagedCache, tokens: list[int]) -> Sequence:
    seq = cache.sequence(tokens)
    if len(tokens) > seq.length:
        with cache.step({seq: len(tokens) - seq.length}):
            pass
    return seq


def extend(cache: PagedCache, seq: Sequence, *tokens: int) -> None:
    seq.append(tokens)
    with cache.step({seq: len(tokens)}):
        pass


def filled_one_by_one(cache: PagedCache) -> list[int]:
    """Slots of each block that hold a token, as a plain loop finds them."""
    filled = [PAGE if indexed else 0 for indexed in cache.pool.indexed.tolist()]
    for seq in cache.sequences.values():
        for table in seq.tables:
            for page in range(len(table)):
                entry = int(table.snapshot()[page])
                if entry >= 0:
                    filled[entry] = max(filled[entry], min(PAGE, max(0, seq.length - page * PAGE)))
    return filled


def check(cache: PagedCache, sequences: list[Sequence], owners: list[int], *, as_counted: bool = True) -> BlockView:
    """Everything that must hold of any view. ``as_counted``: the cache counts empty slots in the same way."""
    seen = view_pool(cache, sequences, owners)
    blocks, counts = seen.blocks, cache.pool.counts()
    by_state = np.bincount(blocks.state, minlength=4)
    assert by_state.tolist() == [counts.free, counts.used, counts.cached, counts.moving]
    assert blocks.mappings.tolist() == cache.pool.refcount.tolist()
    assert blocks.tokens.tolist() == filled_one_by_one(cache)
    statistics = cache.statistics()
    used = blocks.mappings > 0
    if as_counted:
        assert int(used.sum()) * PAGE - int(blocks.tokens[used].sum()) == statistics.waste_tokens
    assert int((blocks.mappings > 1).sum()) == statistics.shared_blocks
    expected = [NOBODY] * cache.pool.num_blocks
    for seq, owner in reversed(list(zip(sequences, owners, strict=True))):
        for table in seq.tables:
            for block in table.mapped_blocks().tolist():
                expected[block] = owner
    assert blocks.owner.tolist() == expected
    for place, seq in enumerate(sequences):
        mapped = np.concatenate([table.mapped_blocks() for table in seq.tables])
        assert seen.pages.blocks[place] == len(mapped)
        assert seen.pages.shared[place] == int((cache.pool.refcount[mapped] > 1).sum())
        assert seen.pages.below[place] == 0
    return blocks


@pytest.mark.parametrize("layout", [PLAIN, MIXED], ids=["one-group", "two-groups"])
def test_a_pool_in_all_its_states(layout: KVLayout) -> None:
    with open_cache(layout, num_blocks=64) as cache:
        check(cache, [], [])
        first, second = computed(cache, [*range(30)]), computed(cache, [*range(18), 99, 98])
        check(cache, [first, second], [7, 3])
        twin = first.fork()
        blocks = check(cache, [first, second, twin], [7, 3, MAX_OWNER])
        assert set(blocks.owner.tolist()) == {NOBODY, 7, 3}  # the twin has nothing of its own yet
        extend(cache, twin, 1, 2, 3)
        assert MAX_OWNER in check(cache, [first, second, twin], [7, 3, MAX_OWNER]).owner
        second.free()
        assert BlockState.CACHED in check(cache, [first, twin], [7, MAX_OWNER]).state
        check(cache, [twin, first], [MAX_OWNER, 7])  # the first one named is the oldest


def test_pages_that_several_have_begun_are_as_full_as_the_furthest_has_them() -> None:
    with open_cache(PLAIN, num_blocks=16, prefix_cache=False) as cache:
        first = computed(cache, [*range(10)])
        twin = first.fork()
        twin.truncate(9)
        blocks = check(cache, [first, twin], [1, 2])
        tail = int(first.tables[0].snapshot()[2])
        assert (blocks.mappings[tail], blocks.tokens[tail]) == (2, 2)
        twin.truncate(2)  # its last page is full in the other's table
        blocks = check(cache, [first, twin], [1, 2], as_counted=False)
        assert blocks.tokens[int(first.tables[0].snapshot()[0])] == PAGE


def test_pages_of_an_open_step_are_not_full_yet() -> None:
    with open_cache(PLAIN, num_blocks=16) as cache:
        seq = cache.sequence([*range(11)])
        with cache.step({seq: 6}):
            check(cache, [seq], [1], as_counted=False)
        with cache.step({seq: 5}):
            blocks = check(cache, [seq], [1], as_counted=False)
            assert blocks.tokens[seq.tables[0].mapped_blocks()].tolist() == [4, 2, 0]


def test_sequences_of_nobody_fill_pages_too() -> None:
    with open_cache(PLAIN, num_blocks=16) as cache:
        known, unknown = computed(cache, [1, 2, 3]), computed(cache, [4, 5, 6, 7, 8])
        blocks = check(cache, [known], [9])
        assert blocks.owner[unknown.tables[0].mapped_blocks()].tolist() == [NOBODY, NOBODY]


def test_a_block_that_very_many_map() -> None:
    with open_cache(PLAIN, num_blocks=16) as cache:
        first = computed(cache, [1, 2, 3, 4, 5, 6])
        twins = [first.fork() for _ in range(300)]
        seen = view_pool(cache, [first, *twins], list(range(1, 302)))
        assert seen.blocks.mappings[first.tables[0].mapped_blocks()].tolist() == [255, 255]


def test_the_view_does_not_change_with_the_pool() -> None:
    with open_cache(PLAIN, num_blocks=16) as cache:
        seq = computed(cache, [1, 2, 3, 4, 5])
        before = view_pool(cache, [seq], [1]).blocks
        again = view_pool(cache, [seq], [1]).blocks
        assert before.is_same(again)
        seq.free()
        after = view_pool(cache, [], []).blocks
        assert before.is_same(again)
        assert not after.is_same(before)
        assert len(after.changes_since(before)) == 2


def test_pages_below_the_device_are_counted_and_own_no_block() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 121), limit=5, chunk=8)
        seen = view_pool(stamp.cache, [seq], [6])
        resident = int((seen.blocks.owner == 6).sum())
        assert seen.pages.blocks == [resident]
        assert seen.pages.below == [stamp.cache.paging.num_non_resident(seq)]
        assert seen.pages.below[0] + resident == 31
        assert int(seen.blocks.tokens[seen.blocks.mappings > 0].sum()) == 4 * (resident - 1) + 1


# -- numbers of branches -------------------------------------------------------------------------------------------


def test_a_branch_keeps_its_number_and_no_other_gets_it_soon() -> None:
    numbers = OwnerNumbers()
    first = numbers.of([10, 20])
    assert len(set(first.values())) == 2
    assert NOBODY not in first.values()
    second = numbers.of([20, 30])
    assert second[20] == first[20]
    assert second[30] not in first.values()
    assert numbers.of([20, 30]) == second


def test_numbers_come_round_and_leave_out_those_in_use() -> None:
    numbers = OwnerNumbers()
    kept = numbers.of([0])[0]
    numbers._last = MAX_OWNER - 1
    given = numbers.of([0, 1, 2, 3])
    assert given == {0: kept, 1: MAX_OWNER, 2: 2, 3: 3}


def test_where_there_is_no_number_left_nobody_owns() -> None:
    given = OwnerNumbers().of(range(MAX_OWNER + 2))
    assert sorted(given.values())[:3] == [NOBODY, NOBODY, 1]
