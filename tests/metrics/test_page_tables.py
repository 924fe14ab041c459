"""Page tables as rows, over branches made by hand; the pages are those of a real cache."""

from array import array
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kvpager.assemble import open_cache
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.engine.engine import Engine
from kvpager.memory.layout import KVLayout, LayerSpec
from kvpager.metrics.frame_taker import Named
from kvpager.metrics.page_tables import copy_tables, rows_of
from tests.cache.paged import open_limited, over_host
from tests.stamp import T

PAGE = 4
PLAIN = KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=PAGE)
MIXED = KVLayout.mixed([LayerSpec(1, 8), LayerSpec(1, 8, window=8)], page_size=PAGE)


def engine_of(cache: PagedCache) -> Engine:
    return cast(Engine, SimpleNamespace(cache=cache, layout=cache.layout))


def named(owner: int, seq: Sequence | None, *, first: Named | None = None) -> Named:
    """A branch; a further choice of ``first``'s request, if that is given."""
    branch: Any = SimpleNamespace(choice=0 if first is None else 1, sequence=seq, running_sequence=seq)
    if first is None:
        branch.request = SimpleNamespace(prompt=array("i"), branches=[branch])
    else:
        branch.request = first.branch.request
    return Named(branch, owner, f"cmpl-{owner}", "")


def computed(cache: PagedCache, count: int) -> Sequence:
    seq = cache.sequence(range(count))
    with cache.step({seq: count - seq.length}):
        pass
    return seq


def test_a_row_says_of_each_page_where_it_lies() -> None:
    with open_cache(PLAIN, num_blocks=32) as cache:
        seq = computed(cache, 10)
        first = named(3, seq)
        second = named(4, seq.fork(), first=first)
        copied = copy_tables(engine_of(cache), [first, second, named(5, None)], limit=100, only=None)
        rows = rows_of(copied)
        assert [(row["owner"], row["request"], row["choice"], row["parent"]) for row in rows] == [
            (3, "cmpl-3", 0, None),
            (4, "cmpl-4", 1, 3),
        ]
        blocks = seq.tables[0].mapped_blocks().tolist()
        assert rows[0]["pages"] == [
            {"page": page, "block": block, "tier": "device", "shared": True, "filled": filled}
            for page, block, filled in zip(range(3), blocks, (4, 4, 2), strict=True)
        ]
        assert copied.left_out == 0
        assert [row["owner"] for row in rows_of(copy_tables(engine_of(cache), [first, second], 100, only=4))] == [4]
        assert rows_of(copy_tables(engine_of(cache), [], 100, only=None)) == []


def test_a_parent_that_has_ended_is_not_named() -> None:
    with open_cache(PLAIN, num_blocks=32) as cache:
        seq = computed(cache, 10)
        second = named(4, seq.fork(), first=named(3, seq))
        (row,) = rows_of(copy_tables(engine_of(cache), [second], limit=100, only=None))
        assert row["parent"] is None


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 1000])
def test_room_is_shared_out_and_what_is_left_out_is_counted(limit: int) -> None:
    with open_cache(PLAIN, num_blocks=32) as cache:
        branches = [named(number, computed(cache, count)) for number, count in ((1, 12), (2, 9), (3, 1))]
        copied = copy_tables(engine_of(cache), branches, limit, only=None)
        shown = sum(len(row["pages"]) for row in rows_of(copied))
        assert shown <= limit
        assert shown + copied.left_out == 7
        assert copied.left_out == 0 or limit < 1000


def test_pages_given_back_to_a_window_are_not_in_the_row() -> None:
    with open_cache(MIXED, num_blocks=64) as cache:
        seq = computed(cache, 40)
        full, windowed = rows_of(copy_tables(engine_of(cache), [named(1, seq)], 100, only=None))
        assert (full["group"], full["first_page"], len(full["pages"])) == (0, 0, 10)
        assert (windowed["group"], windowed["num_pages"]) == (1, 10)
        assert windowed["first_page"] > 0
        assert windowed["pages"][0]["page"] == windowed["first_page"]
        assert all(page["block"] is not None for page in windowed["pages"])


def test_pages_below_the_device_have_a_tier_and_no_block() -> None:
    with over_host(num_blocks=8) as stamp:
        seq = open_limited(stamp, T(1, 120), limit=5, chunk=8)
        (row,) = rows_of(copy_tables(engine_of(stamp.cache), [named(1, seq)], 100, only=None))
        where = [(page["tier"], page["block"] is None) for page in row["pages"]]
        assert set(where) == {("device", False), ("host", True)}
        assert where.count(("host", True)) == stamp.cache.paging.num_non_resident(seq)
        assert all(page["filled"] == 4 and not page["shared"] for page in row["pages"])


def test_rows_do_not_change_with_the_cache() -> None:
    with open_cache(PLAIN, num_blocks=32) as cache:
        seq = computed(cache, 10)
        copied = copy_tables(engine_of(cache), [named(1, seq)], 100, only=None)
        before = rows_of(copied)
        seq.free()
        assert rows_of(copied) == before
        assert np.array_equal(copied.tables[0].tiers, [1, 1, 1])
