"""Many positioned reads at once: each range has its bytes or its own error, whatever the others have."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import numpy as np
import pytest

SIZE = 100_000
CONTENT = np.random.default_rng(1).integers(0, 256, SIZE).astype(np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(CONTENT.tobytes())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def read(reader: object, fds: list[int], offsets: list[int], into: np.ndarray) -> list[int]:
    done = np.full(len(fds), -999, np.int64)
    reader.read(  # type: ignore[attr-defined]
        np.array(fds, np.int32),
        np.array(offsets, np.int64),
        target=into.ctypes.data,
        stride=into.strides[0],
        bytes=into.shape[1],
        done=done,
    )
    return done.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("max_threads", [0, 1, 5, 32])
@pytest.mark.parametrize("count", [1, 2, 300])
def test_every_range_has_its_bytes(native: ModuleType, file: int, max_threads: int, count: int) -> None:
    reader = native.RangeReader(max_threads=max_threads)
    offsets = np.random.default_rng(2).integers(0, SIZE - 700, count).tolist()
    into = np.zeros((count, 800), np.uint8)
    for _ in range(3):
        into[:] = 0xEE
        assert read(reader, [file] * count, offsets, into[:, :700]) == [700] * count
        assert all((row[:700] == CONTENT[at : at + 700]).all() for row, at in zip(into, offsets, strict=True))
        assert (into[:, 700:] == 0xEE).all()


def test_an_error_is_of_its_range_alone(native: ModuleType, file: int, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fds = [file, -1, file, folder, file, file, file]
        offsets = [0, 0, SIZE - 50, 0, SIZE, 5, -1]
        into = np.zeros((7, 100), np.uint8)
        found = read(native.RangeReader(max_threads=3), fds, offsets, into)
    finally:
        os.close(folder)
    assert found == [100, -errno.EBADF, 50, -errno.EISDIR, 0, 100, -errno.EINVAL]
    assert (into[2, :50] == CONTENT[-50:]).all()
    assert (into[5] == CONTENT[5:105]).all()


def test_many_may_call_at_once(native: ModuleType, file: int) -> None:
    reader, wrong = native.RangeReader(max_threads=4), []

    def run(seed: int) -> None:
        dice = np.random.default_rng(seed)
        for _ in range(30):
            offsets = dice.integers(0, SIZE - 64, dice.integers(1, 40)).tolist()
            into = np.zeros((len(offsets), 64), np.uint8)
            read(reader, [file] * len(offsets), offsets, into)
            wrong.extend(at for row, at in zip(into, offsets, strict=True) if (row != CONTENT[at : at + 64]).any())

    threads = [Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_end_with_the_reader(native: ModuleType, file: int) -> None:
    before = num_threads()
    reader = native.RangeReader(max_threads=8)
    into = np.zeros((100, 10), np.uint8)
    read(reader, [file] * 100, [0] * 100, into)
    assert num_threads() <= before + 8
    del reader
    for _ in range(1000):
        if num_threads() <= before:
            return
        Event().wait(0.01)
    raise AssertionError(f"{num_threads() - before} threads are left")


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_wrong_calls_are_refused(native: ModuleType, file: int) -> None:
    with pytest.raises(ValueError, match="max_threads"):
        native.RangeReader(max_threads=-1)
    reader, into = native.RangeReader(max_threads=1), np.zeros((2, 10), np.uint8)
    one, two = np.array([file], np.int32), np.zeros(2, np.int64)
    place = {"target": into.ctypes.data, "stride": 10, "bytes": 10}
    with pytest.raises(ValueError, match="equally long"):
        reader.read(one, two, done=two, **place)
    with pytest.raises(ValueError, match="bytes"):
        reader.read(one, two[:1], done=two[:1], **place | {"bytes": 11})
    with pytest.raises(ValueError, match="memory"):
        reader.read(one, two[:1], done=two[:1], **place | {"target": 0})
    with pytest.raises(TypeError):
        reader.read(one.astype(np.int64), two[:1], done=two[:1], **place)
    reader.read(one[:0], two[:0], done=two[:0], **place)
