"""O-17: a failed store never was there, a failed load is a miss; what went wrong is counted, and it recovers."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvpager.errors import TierError, TierFull, WrongContent
from kvpager.tiers.disk.files import SystemFiles
from kvpager.tiers.tier import Page
from tests.tiers.disk.faulty_files import EACCES, EIO, ENOSPC, EROFS, Fault, FaultyFiles, bug, error, short_then
from tests.tiers.disk.pages import (
    NO_PARENT,
    FakeClock,
    content,
    disk_bytes,
    found,
    get,
    key,
    open_store,
    prepare,
    put,
    slab_files,
)

FAULTS = {"EIO": EIO, "ENOSPC": ENOSPC, "EROFS": EROFS, "short": short_then(5), "exception": bug}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_failed_write_of_a_store_leaves_nothing(fast_folder: Path, name: str, at: int) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(fast_folder / "kv", files=files, clock=clock)
    put(store, *range(130))  # full: two pages have to go, and their headers are emptied first
    there = found(store, range(130))
    used = disk_bytes(fast_folder / "kv")
    files.fail(FAULTS[name], {"pwritev"}, first=at, times=2)
    errors = put(store, 200, 201)
    assert files.num_faults
    assert all(isinstance(each, TierError) for each in errors)
    assert found(store, range(300)) == there[2:]
    assert disk_bytes(fast_folder / "kv") == used == store.usage().used_bytes
    assert sum(store.statistics().failures.values()) == 2
    assert store.usage().moving == 0
    files.fail(None)
    clock.now += 2
    assert put(store, 200) == [None]
    assert put(store, 201) == [None]
    assert store.state == "ok"
    store.close()
    assert found(open_store(fast_folder / "kv"), range(300)) == [*there[2:], 200, 201]


@pytest.mark.parametrize("name", ["EIO", "short", "exception"])
def test_a_failed_read_is_a_miss_of_that_page_only(fast_folder: Path, name: str) -> None:
    files = FaultyFiles()
    store = open_store(fast_folder, files=files)
    put(store, 1, 2)
    files.fail(FAULTS[name], {"preadv"}, times=2)
    assert isinstance(get(store, 1), TierError)
    files.fail(None)
    assert found(store, [1, 2]) == [2]
    assert store.statistics().loaded.failed == 1
    store.check()


def test_one_bad_sector_costs_one_page_of_a_batch(fast_folder: Path) -> None:
    def bad_sector(call: object, arguments: tuple) -> object:
        _, buffers, offset = arguments
        size = sum(buffer.nbytes for buffer in buffers)
        if offset <= bad < offset + size:
            return EIO(call, arguments)  # type: ignore[arg-type]
        return call(*arguments)  # type: ignore[operator]

    files = FaultyFiles(fault=bad_sector, only={"preadv"})  # type: ignore[arg-type]
    bad = 1 << 60
    store = open_store(fast_folder, files=files)
    put(store, *range(8))
    slots = [slot for number in range(8) if (slot := store.prepare_load(key(number)))]
    shape = store._worker._slabs[0].shape
    bad = shape.slot_at(3) + 100
    into = [np.empty(store.page_bytes, np.uint8) for _ in slots]
    results = store.read(slots, into)
    assert [number for number, result in enumerate(results) if isinstance(result, TierError)] == [3]


def test_a_disk_that_fails_again_and_again_is_left_alone_for_a_while(fast_folder: Path) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(fast_folder, files=files, clock=clock)
    put(store, *range(9))
    files.fail(EIO, {"preadv"})
    for number in range(5):
        get(store, number)
    assert store.state.startswith("failing: EIO")
    calls = files.num_calls
    assert store.contains(key(6)) is False
    assert get(store, 6) is False
    assert put(store, 20) == []
    assert files.num_calls == calls
    files.fail(None)
    clock.now += 1.5
    assert found(store, range(9)) == [5, 6, 7, 8]
    assert store.state == "ok"


@pytest.mark.parametrize(("fault", "state"), [(EROFS, "not writable: EROFS"), (EACCES, "not writable: EACCES")])
def test_a_folder_gone_read_only_is_read_and_tried_again(fast_folder: Path, fault: Fault, state: str) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(fast_folder, files=files, clock=clock)
    put(store, 1, 2)
    files.fail(fault, {"pwritev", "create", "fallocate", "rename", "unlink"})
    [failed] = put(store, 3)
    assert isinstance(failed, TierFull)
    assert store.state.startswith(state)
    assert put(store, 4) == []
    assert found(store, range(5)) == [1, 2]
    files.fail(None)
    clock.now += 1.5
    assert put(store, 4) == [None]
    assert store.state == "ok"


@pytest.mark.parametrize("call", ["create", "fallocate", "pwritev", "fdatasync", "rename"])
def test_a_slab_that_can_not_be_made_leaves_no_file(fast_folder: Path, call: str) -> None:
    files, clock = FaultyFiles(), FakeClock()
    store = open_store(fast_folder / "kv", files=files, clock=clock)
    files.fail(EIO, {call}, times=1)
    assert isinstance(put(store, 1)[0], TierError)
    assert disk_bytes(fast_folder / "kv") == 0 == store.usage().used_bytes
    assert put(store, 1) == [None]
    store.check()


@pytest.mark.parametrize(
    "harm", ["delete", "truncate", "grow", "empty the folder", "remove the folder", "move the folder"]
)
def test_files_that_go_cost_their_pages_only(fast_folder: Path, harm: str) -> None:
    folder, clock = fast_folder / "kv", FakeClock()
    store = open_store(folder, clock=clock)
    put(store, *range(30))
    first = slab_files(folder)[0]
    if harm == "delete":
        first.unlink()
    elif harm == "truncate":
        os.truncate(first, 9000)
    elif harm == "grow":
        os.truncate(first, first.stat().st_size + 1)
    elif harm == "empty the folder":
        for path in folder.iterdir():
            path.unlink()
    elif harm == "remove the folder":
        shutil.rmtree(folder)
    else:
        folder.rename(fast_folder / "away")
    clock.now += 1.5
    survivors = found(store, range(30))
    assert len(survivors) < 30
    store.tick()
    survivors = found(store, range(30))
    assert survivors == ([] if "folder" in harm else list(range(14, 30)))
    assert any(word.startswith("slab ") for word in store.statistics().failures)
    assert store.usage().moving == 0
    assert put(store, *range(40, 60)) == [None] * 20
    assert found(store, range(40, 60)) == list(range(40, 60))
    assert store.state == "ok"
    store.check()
    store.close()
    assert found(open_store(folder), range(60)) == [*survivors, *range(40, 60)]


def test_a_store_under_way_when_its_file_goes_never_was_there(fast_folder: Path) -> None:
    clock = FakeClock()
    store = open_store(fast_folder, clock=clock)
    put(store, 1)
    [slot] = prepare(store, [2])
    assert store.write([slot], [content(2)]) == [None]
    slab_files(fast_folder)[0].unlink()
    clock.now += 1.5
    store._worker.look()
    store.tick()
    store.complete_store(slot, None)
    assert found(store, [1, 2]) == []
    assert put(store, 2) == [None]
    assert found(store, [1, 2]) == [2]


def test_a_page_found_wrong_is_not_found_after_a_restart(fast_folder: Path) -> None:
    store = open_store(fast_folder)
    put(store, 1, 2)
    shape = store._worker._slabs[0].shape
    with slab_files(fast_folder)[0].open("r+b") as file:
        file.seek(shape.slot_at(0) + 77)
        file.write(b"x")
    assert isinstance(get(store, 1), WrongContent)
    assert store.statistics().quarantined == 1
    assert found(store, [1, 2]) == [2]  # a second transfer empties the header
    store.close()
    store = open_store(fast_folder)
    assert not store.contains(key(1))
    assert store.contains(key(2))


def test_nothing_is_left_open(fast_folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    clock = FakeClock()
    store = open_store(fast_folder / "kv", clock=clock, direct="auto")
    put(store, *range(50))
    slab_files(fast_folder / "kv")[0].unlink()
    clock.now += 2
    store._worker.look()
    store.tick()
    reader = open_store(fast_folder / "kv", read_only=True)
    reader.refresh()
    reader.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_books_do_no_input_or_output(fast_folder: Path) -> None:
    calls = {name for name in vars(SystemFiles) if not name.startswith("_")}
    files = FaultyFiles(only=calls)
    store = open_store(fast_folder, files=files)
    put(store, 1, 2, 3)
    files.fail(error(5))
    slot, read = store.prepare_store(Page(key(4), NO_PARENT)), store.prepare_load(key(1))
    assert slot is not None
    assert read is not None
    store.complete_store(slot, TierError("not written"))
    store.complete_load(read, TierError("not read"))
    store.touch([key(2)])
    store.victims(2)
    store.forget([key(2)])
    store.clear()
    store.tick()
    store.blame("late")
    store.usage()
    store.statistics()
    assert files.num_faults == 0


def test_the_process_may_go_to_another_folder(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.chdir(fast_folder)
    store = open_store("kv", clock=clock)
    put(store, 1)
    monkeypatch.chdir("/")
    clock.now += 2
    assert found(store, [1]) == [1]
