"""Page -> block: sparse, small, and a snapshot stays what it was."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager import InvariantError
from kvpager.memory.page_table import UNMAPPED, Location, PageTable
from kvpager.types import TierKind

NOWHERE = TierKind.NONE


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int32)


def test_a_new_table_maps_nothing() -> None:
    table = PageTable(16)
    assert len(table) == 0
    assert table.mapped_blocks().tolist() == []
    assert not table.translate(0).is_mapped
    table.check(num_blocks=0)


def test_a_position_translates_to_tier_block_and_slot() -> None:
    table = PageTable(16)
    table.map(0, ids(17, 4, 9))
    assert table.translate(0) == Location(TierKind.DEVICE, 17, 0)
    assert table.translate(15) == Location(TierKind.DEVICE, 17, 15)
    assert table.translate(16) == Location(TierKind.DEVICE, 4, 0)
    assert table.translate(47) == Location(TierKind.DEVICE, 9, 15)
    assert table.translate(48) == Location(NOWHERE, 0, 0)
    assert table.translate(10**12).tier is NOWHERE


def test_a_byte_address_translates_to_tier_block_and_byte() -> None:
    table = PageTable(16)
    table.map(0, ids(17, 4))
    assert table.translate_address(0, 16384) == Location(TierKind.DEVICE, 17, 0)
    assert table.translate_address(16383, 16384) == Location(TierKind.DEVICE, 17, 16383)
    assert table.translate_address(16384 + 5, 16384) == Location(TierKind.DEVICE, 4, 5)
    assert not table.translate_address(2 * 16384, 16384).is_mapped


@pytest.mark.parametrize("position", [-1, -16, -(2**40)])
def test_nothing_lies_before_the_start(position: int) -> None:
    table = PageTable(16)
    table.map(0, ids(1))
    with pytest.raises(InvariantError, match="before the start"):
        table.translate(position)
    with pytest.raises(InvariantError, match="before the start"):
        table.translate_address(position, 64)


def test_a_table_is_sparse() -> None:
    table = PageTable(4)
    table.map(1000, ids(3), TierKind.HOST)
    assert len(table) == 1001
    assert table.mapped_blocks().tolist() == []
    assert table.translate(4000) == Location(TierKind.HOST, 3, 0)
    assert table.translate(3999).tier is NOWHERE
    table.map(5, ids(7, 8))
    assert table.mapped_blocks().tolist() == [7, 8]
    table.check(num_blocks=9)


def test_a_mapped_page_can_not_be_mapped_again() -> None:
    table = PageTable(4)
    table.map(0, ids(1, 2, 3))
    with pytest.raises(InvariantError, match="mapped already"):
        table.map(2, ids(7))
    assert table.mapped_blocks().tolist() == [1, 2, 3]
    assert table.unmap(1, 2).tolist() == [2]
    table.map(1, ids(7))
    assert table.mapped_blocks().tolist() == [1, 7, 3]


def test_unmap_returns_blocks_in_page_order_and_cuts_the_end() -> None:
    table = PageTable(4)
    table.map(0, ids(5, 6, 7, 8))
    assert table.unmap(0, 2).tolist() == [5, 6]
    assert len(table) == 4
    assert table.unmap(3, 99).tolist() == [8]
    assert len(table) == 3
    assert table.unmap(3, 9).tolist() == []
    assert table.unmap(2, 2).tolist() == []
    assert not table.translate(0).is_mapped
    assert table.translate(8).block == 7


def test_map_one_goes_on_at_the_end_and_grows() -> None:
    table = PageTable(4, capacity=0)
    for page in range(100):
        table.map_one(page, 100 + page)
    assert table.mapped_blocks().tolist() == list(range(100, 200))
    table.check(num_blocks=200)


def test_replace_points_a_mapped_page_elsewhere_and_refuses_others() -> None:
    table = PageTable(4)
    table.map(2, ids(5))
    table.replace(2, 6)
    assert table.mapped_blocks().tolist() == [6]
    for page in (0, 3, 50):
        with pytest.raises(InvariantError, match="not mapped"):
            table.replace(page, 1)


def test_a_copy_shares_nothing() -> None:
    table = PageTable(4)
    table.map(0, ids(1, 2))
    twin = table.copy()
    twin.replace(0, 9)
    twin.map(2, ids(3))
    table.unmap(1, 2)
    assert table.mapped_blocks().tolist() == [1]
    assert twin.mapped_blocks().tolist() == [9, 2, 3]


def test_a_page_moves_to_a_lower_tier_and_back() -> None:
    table = PageTable(4)
    table.map(0, ids(5, 6, 7, 8))
    assert table.move(np.array([1, 2]), ids(0, 90), TierKind.DISK).tolist() == [6, 7]
    assert table.mapped_blocks().tolist() == [5, 8]
    assert table.snapshot()[:4].tolist() == [5, -2, -92, 8]
    assert table.tiers().tolist() == [TierKind.DEVICE, TierKind.DISK, TierKind.DISK, TierKind.DEVICE]
    assert table.translate(11) == Location(TierKind.DISK, 90, 3)
    assert table.translate_address(2 * 64 + 5, 64) == Location(TierKind.DISK, 90, 5)
    table.check(num_blocks=9)
    table.renumber(np.arange(9, 0, -1, dtype=np.int32))
    assert table.snapshot()[:4].tolist() == [4, -2, -92, 1]
    table.move(np.array([2]), ids(3), TierKind.DEVICE)
    assert table.unmap(0, 4).tolist() == [4, 3, 1]
    with pytest.raises(InvariantError, match="not mapped"):
        table.move(np.array([0]), ids(3), TierKind.HOST)


def test_pages_are_mapped_and_unmapped_here_and_there() -> None:
    table = PageTable(4, capacity=2)
    table.map_pages(np.array([1, 4]), ids(7, 8), TierKind.DEVICE)
    table.map_pages(np.array([0, 2, 5]), ids(1, 2, 3), TierKind.HOST)
    assert table.snapshot()[:6].tolist() == [-3, 7, -4, UNMAPPED, 8, -5]
    table.check(num_blocks=9)
    with pytest.raises(InvariantError, match="mapped already"):
        table.map_pages(np.array([3, 4]), ids(1, 2), TierKind.DEVICE)
    assert table.unmap_pages(np.array([1, 2, 4])).tolist() == [7, 8]
    assert len(table) == 6
    assert table.snapshot()[:6].tolist() == [-3, UNMAPPED, UNMAPPED, UNMAPPED, UNMAPPED, -5]
    table.check(num_blocks=9)


def test_renumber_changes_mapped_pages_only() -> None:
    table = PageTable(4)
    table.map(0, ids(3))
    table.map(2, ids(1))
    table.renumber(np.array([10, 11, 12, 13], np.int32))
    assert table.snapshot()[:3].tolist() == [13, UNMAPPED, 11]


def test_a_snapshot_is_not_changed_by_pages_mapped_behind_it() -> None:
    table = PageTable(4, capacity=4)
    table.map(0, ids(1, 2))
    snapshot = table.snapshot()
    seen = snapshot[:2].tolist()
    for page in range(2, 40):
        table.map_one(page, page + 1)
    assert snapshot[:2].tolist() == seen


def test_after_detach_a_snapshot_keeps_what_it_saw() -> None:
    table = PageTable(4)
    table.map(0, ids(1, 2, 3))
    snapshot = table.snapshot()
    table.detach()
    table.replace(1, 8)
    table.unmap(0, 1)
    assert snapshot[:3].tolist() == [1, 2, 3]
    assert table.snapshot()[:3].tolist() == [UNMAPPED, 8, 3]


def test_without_detach_a_replaced_page_shows_in_the_snapshot() -> None:
    """The control: the test above would see it."""
    table = PageTable(4)
    table.map(0, ids(1, 2, 3))
    snapshot = table.snapshot()
    table.replace(1, 8)
    assert snapshot[1] == 8


def test_a_million_tokens_cost_less_than_a_mebibyte_and_no_object_per_page() -> None:
    pages = 1_048_576 // 16
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    table = PageTable(16)
    table.map(0, np.arange(pages, dtype=np.int32))
    for page in range(pages, pages + 64):  # decode on
        table.map_one(page, page)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.collect()
    assert table.nbytes <= 5 * (2 * pages + 64)
    assert table.nbytes <= 1_048_576
    assert peak < 4_000_000
    assert len(gc.get_objects()) - objects < 100


def test_check_finds_a_block_outside_the_pool() -> None:
    table = PageTable(4)
    table.map(0, ids(7))
    table.check(num_blocks=8)
    with pytest.raises(InvariantError, match="outside the pool"):
        table.check(num_blocks=7)


def test_check_finds_a_block_that_stands_twice() -> None:
    table = PageTable(4)
    table.map(0, ids(7, 7))
    with pytest.raises(InvariantError, match="twice"):
        table.check(num_blocks=8)


def test_check_finds_block_and_tier_that_disagree() -> None:
    table = PageTable(4)
    table.map(0, ids(7), TierKind.NONE)
    with pytest.raises(InvariantError, match="disagree"):
        table.check(num_blocks=8)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("map"), st.integers(0, 40), st.integers(1, 9)),
            st.tuples(st.just("unmap"), st.integers(0, 40), st.integers(0, 50)),
            st.tuples(st.just("copy"), st.just(0), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_table_is_a_dict_of_pages(operations: list[tuple[str, int, int]]) -> None:
    table, model, fresh = PageTable(4, capacity=2), {}, 0
    for verb, page, count in operations:
        if verb == "map":
            blocks = np.arange(fresh, fresh + count, dtype=np.int32)
            if any(p in model for p in range(page, page + count)):
                with pytest.raises(InvariantError):
                    table.map(page, blocks)
            else:
                table.map(page, blocks)
                model.update(zip(range(page, page + count), blocks.tolist(), strict=True))
                fresh += count
        elif verb == "unmap":
            expected = [model.pop(p) for p in sorted(model) if page <= p < count]
            assert table.unmap(page, count).tolist() == expected
        else:
            table = table.copy()
        table.check(num_blocks=max(fresh, 1))
        assert table.mapped_blocks().tolist() == [model[p] for p in sorted(model)]
        for probe in range(52):
            found = table.translate(4 * probe + 3)
            assert found.is_mapped == (probe in model)
            assert not found.is_mapped or (found.block, found.offset) == (model[probe], 3)
