"""Parts of pages on disk where calls fail, files end or are gone: each part has its own error, and others come."""

import errno
import os
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from kvpager import native
from kvpager.errors import TierError, WrongContent
from kvpager.tiers.disk.files import SystemFiles, read_each
from kvpager.tiers.disk.store import DiskStore
from kvpager.tiers.sealing import Zstd
from kvpager.tiers.tier import Slot
from tests.tiers.disk.faulty_files import EIO, FaultyFiles, bug
from tests.tiers.disk.pages import PAGE, FakeClock, content, key, open_store, put, slab_files


def hold(store: DiskStore, *numbers: int) -> list[Slot]:
    slots = [store.hold(key(number)) for number in numbers]
    store.check()
    return [slot for slot in slots if slot is not None]


def parts(store: DiskStore, slots: list[Slot], start: int = 1000, size: int = 500) -> list[Any]:
    """For each part its bytes, or what went wrong."""
    into = np.zeros((len(slots), size), np.uint8)
    errors = store.read_parts(np.array([slot.index for slot in slots], np.int32), start, into)
    return [error or row.tobytes() for error, row in zip(errors, into, strict=True)]


def expected(number: int, start: int = 1000, size: int = 500) -> bytes:
    return content(number)[start : start + size].tobytes()


@pytest.mark.parametrize("at", range(8))
def test_one_call_that_fails_costs_one_part(fast_folder: Path, at: int) -> None:
    files = FaultyFiles()
    store = open_store(fast_folder / "kv", files=files)
    put(store, *range(8))
    slots = hold(store, *range(8))
    files.fail(EIO, {"preadv"}, first=at, times=1)
    found = parts(store, slots)
    assert [isinstance(each, TierError) for each in found] == [number == at for number in range(8)]
    assert str(found[at]).startswith("EIO")
    assert all(found[number] == expected(number) for number in range(8) if number != at)
    files.fail(None)
    assert parts(store, slots) == [expected(number) for number in range(8)]


@pytest.mark.parametrize("at", range(6))
def test_short_reads_are_read_on(fast_folder: Path, at: int) -> None:
    def half(call: Any, arguments: Any) -> Any:
        fd, buffers, offset = arguments
        return call(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)

    files = FaultyFiles()
    store = open_store(fast_folder / "kv", files=files)
    put(store, 1, 2)
    files.fail(half, {"preadv"}, first=at, times=3)
    assert parts(store, hold(store, 2, 1)) == [expected(2), expected(1)]


def test_what_the_calls_raise_besides_is_raised(fast_folder: Path) -> None:
    files = FaultyFiles()
    store = open_store(fast_folder / "kv", files=files)
    put(store, 1)
    files.fail(bug, {"preadv"})
    with pytest.raises(RuntimeError):
        parts(store, hold(store, 1))


def test_failures_open_the_breaker_and_parts_that_come_close_it(fast_folder: Path) -> None:
    clock = FakeClock()
    store = open_store(fast_folder / "kv", clock=clock)
    put(store, *range(9))
    slots = hold(store, *range(9))
    for slot in slots[:5]:
        store.let_go(slot, TierError("EIO: test"))
    assert store.state == "failing: EIO: test"
    assert store.hold(key(7)) is None
    assert parts(store, slots[5:6]) == [expected(5)]
    store.tick()
    assert store.state == "ok"
    assert hold(store, 7)


@pytest.mark.parametrize("loss", ["removed", "cut"])
def test_a_slab_that_is_gone_is_an_error_of_its_pages(fast_folder: Path, loss: str) -> None:
    store = open_store(fast_folder / "kv")
    put(store, *range(40))
    slots = hold(store, *range(40))
    first, *_ = slab_files(fast_folder / "kv")
    if loss == "cut":
        os.truncate(first, first.stat().st_size - PAGE)
    else:
        first.unlink()
        store._worker.look(now=True)
    found = parts(store, slots)
    lost = [number for number, each in enumerate(found) if isinstance(each, WrongContent)]
    assert 0 < len(lost) < 40
    assert all(found[number] == expected(number) for number in range(40) if number not in lost)
    store.tick()
    for number, slot in enumerate(slots):
        store.let_go(slot, found[number] if number in lost else None)
        store.check()
    store.tick()
    assert store.usage().used == 0
    put(store, 100)
    assert parts(store, hold(store, 100)) == [expected(100)]


@pytest.mark.parametrize("is_let_go", [True, False])
def test_a_wrong_page_that_is_held_is_not_found_after_a_restart(fast_folder: Path, is_let_go: bool) -> None:
    store = open_store(fast_folder / "kv")
    put(store, 1, 2)
    first, again = hold(store, 1, 1)
    store.let_go(first, WrongContent("part: test"))
    if is_let_go:
        store.let_go(again)
    store.close()
    store = open_store(fast_folder / "kv")
    assert (store.contains(key(1)), store.contains(key(2))) == (False, True)


def test_no_descriptor_and_no_thread_is_left(fast_folder: Path) -> None:
    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = left()
    for _ in range(3):
        store = open_store(fast_folder / "kv")
        put(store, *range(40))
        assert len(parts(store, hold(store, *range(40)))) == 40
        store.close()
        del store
    for _ in range(1000):
        if all(now <= then for now, then in zip(left(), before, strict=True)):
            return  # fewer where those of an earlier test were still there
        Event().wait(0.01)
    raise AssertionError(f"{left()} descriptors and threads are left, of {before} before")


def test_packed_pages_are_not_read_in_parts(fast_folder: Path) -> None:
    store = open_store(fast_folder / "kv", packing=Zstd())
    put(store, 1)
    assert "without compress" in store.why_not_in_place()
    assert "without compress" in str(parts(store, hold(store, 1))[0])
    assert open_store(fast_folder / "plain").why_not_in_place() == ""


def test_the_native_reader_gives_what_the_plain_one_gives(tmp_path: Path) -> None:
    if native.module() is None:
        pytest.skip(native.why_not())
    files = SystemFiles()
    path = tmp_path / "file"
    path.write_bytes(content(1, 10_000).tobytes())
    fd = os.open(path, os.O_RDONLY)
    fds, offsets = np.array([fd, fd, -1, fd, fd], np.int32), np.array([0, 9_900, 0, 10_000, 77])
    into, plain = np.zeros((2, 5, 200), np.uint8)
    try:
        found = files.read_many(fds, offsets, into)
        assert found.tolist() == read_each(files, fds, offsets, plain).tolist() == [200, 100, -errno.EBADF, 0, 200]
        assert (into == plain).all()
    finally:
        os.close(fd)
