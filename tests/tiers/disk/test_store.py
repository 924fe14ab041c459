"""Pages go to disk and come back, also after a restart, and never take more than the capacity."""

from pathlib import Path

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.tiers.tier import Page
from tests.tiers.disk.pages import NO_PARENT, content, disk_bytes, found, get, key, open_store, prepare, put, write


@pytest.mark.parametrize("page_bytes", [5000, 8192, 100_000])
@pytest.mark.parametrize("direct", [False, "auto"])
def test_what_was_stored_comes_back(tmp_path: Path, page_bytes: int, direct: bool | str) -> None:
    store = open_store(tmp_path / "kv", 2 << 20, page_bytes, direct=direct)
    assert get(store, 1) is False
    assert put(store, 1, 2, 3) == [None] * 3
    assert found(store, range(5)) == [1, 2, 3]
    store.close()


def test_a_restart_is_warm(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, *range(10))
    store.close()
    store = open_store(tmp_path)
    assert found(store, range(11)) == list(range(10))
    assert store.statistics().pages == 10
    store.check()


def test_the_limit_holds_and_the_oldest_go_first(tmp_path: Path) -> None:
    store = open_store(tmp_path, 1 << 20)
    for number in range(0, 300, 3):
        put(store, number, number + 1, number + 2)
        assert disk_bytes(tmp_path) <= 1 << 20
    blocks = store.usage().blocks
    assert found(store, range(300)) == list(range(300 - blocks, 300))
    assert store.statistics().evicted == 300 - blocks
    assert blocks > 110  # of 128 that would fit without any header


def test_a_restart_with_a_smaller_capacity_drops_the_oldest_slabs(tmp_path: Path) -> None:
    store = open_store(tmp_path, 1 << 20)
    put(store, *range(100))
    store.close()
    store = open_store(tmp_path, 1 << 19)
    assert disk_bytes(tmp_path) <= 1 << 19
    kept = found(store, range(100))
    assert len(kept) > 40
    assert kept == list(range(100 - len(kept), 100))
    put(store, *range(200, 300))
    assert disk_bytes(tmp_path) <= 1 << 19


def test_the_newest_of_two_entries_counts_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 1, 2)
    store._book.forget([key(1)])  # as eviction does: the header stays until its slot is written again
    put(store, 3)
    slots = prepare(store, [1])
    write(store, slots, [content(1)])
    store.close()
    store = open_store(tmp_path)
    assert found(store, range(5)) == [1, 2, 3]


def test_what_was_forgotten_is_not_there_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 1, 2, 3)
    store.forget([key(1)])
    store.close()
    store = open_store(tmp_path)
    assert found(store, range(5)) == [2, 3]
    assert store.clear() == 2
    store.close()
    assert found(open_store(tmp_path), range(5)) == []


def test_a_page_that_changed_on_the_way_is_not_stored(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    slots = prepare(store, [1, 2])
    slots[0].checksum = 7
    first, second = write(store, slots, [content(1), content(2)])
    assert "source" in str(first)
    assert second is None
    assert found(store, range(5)) == [2]
    assert store.state == "ok"


def test_a_capacity_below_one_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 16384"):
        open_store(tmp_path, 16383)
    assert put(open_store(tmp_path, 16384), 1) == [None]


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 1)
    with pytest.raises(ConfigError, match="read_only=True"):
        open_store(tmp_path)
    reader = open_store(tmp_path, read_only=True)
    assert found(reader, range(5)) == [1]
    put(store, 2)
    assert found(reader, range(5)) == [1]
    reader.refresh()
    assert found(reader, range(5)) == [1, 2]
    assert reader.prepare_store(Page(key(3), NO_PARENT)) is None
    store.close()
    assert put(open_store(tmp_path), 3) == [None]


def test_a_reader_never_gets_what_a_writer_put_in_the_place_of_a_page(tmp_path: Path) -> None:
    store = open_store(tmp_path, 16384)
    put(store, 1)
    reader = open_store(tmp_path, read_only=True)
    put(store, 2)
    assert "key" in str(get(reader, 1))
    assert np.array_equal(found(store, [1, 2]), [2])
