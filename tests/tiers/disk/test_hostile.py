"""O-19: damaged, foreign and hostile files are misses that are counted; nothing outside the folder is touched."""

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvpager.errors import ConfigError
from kvpager.tiers.disk.format import BLOCK, HEADER, HEADER_BYTES, SUPERBLOCK, Superblock, is_whole, is_written
from tests.tiers.disk.pages import PAGE, found, get, open_store, put, slab_files

CAPACITY = 4 * PAGE  # a slab of one slot


def stored(folder: Path, number: int = 1, capacity: int = CAPACITY) -> bytes:
    """The slab file of one page."""
    store = open_store(folder, capacity)
    put(store, number)
    store.close()
    [path] = slab_files(folder)
    return path.read_bytes()


def assert_miss(folder: Path) -> None:
    store = open_store(folder, CAPACITY)
    result = get(store, 1)
    assert result is not True
    statistics = store.statistics()
    assert statistics.quarantined >= 1
    assert sum(statistics.failures.values()) >= 1
    store.check()
    assert put(store, 2) == [None]
    assert found(store, [1, 2]) == [2]
    store.close()
    store = open_store(folder, CAPACITY)
    assert found(store, [1, 2]) == [2]
    store.close()


def test_every_bit_of_a_header_counts(fast_folder: Path) -> None:
    good = stored(fast_folder)
    superblock = Superblock.parse(np.frombuffer(good[:BLOCK], np.uint8))
    assert isinstance(superblock, Superblock)
    header = np.frombuffer(bytearray(good[BLOCK : BLOCK + HEADER_BYTES]), np.uint8)
    assert is_whole(header.view(HEADER), superblock, 0).tolist() == [True]
    for bit in range(8 * HEADER_BYTES):
        header[bit // 8] ^= 1 << bit % 8
        assert is_written(header.view(HEADER)).tolist() == [True]
        assert is_whole(header.view(HEADER), superblock, 0).tolist() == [False], f"bit {bit}"
        header[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("bit", range(0, 8 * HEADER_BYTES, 61))
def test_a_damaged_header_is_a_miss(fast_folder: Path, bit: int) -> None:
    bad = bytearray(stored(fast_folder))
    bad[BLOCK + bit // 8] ^= 1 << bit % 8
    slab_files(fast_folder)[0].write_bytes(bad)
    assert_miss(fast_folder)


def test_bits_of_superblock_and_payload_count(fast_folder: Path) -> None:
    good = stored(fast_folder / "good")
    rng = random.Random(1)
    for number in range(150):
        folder = fast_folder / str(number)
        folder.mkdir(mode=0o700)
        at = rng.randrange(8 * BLOCK) if number % 2 else 8 * (len(good) - PAGE) + rng.randrange(8 * PAGE)
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        (folder / "slab-0000000000000000.kv").write_bytes(bad)
        assert_miss(folder)


def test_cut_and_lengthened_files(fast_folder: Path) -> None:
    good = stored(fast_folder / "good")
    lengths = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, len(good) - 1, *range(100, len(good), 700)]
    for length in lengths:
        folder = fast_folder / str(length)
        folder.mkdir(mode=0o700)
        (folder / "slab-0000000000000000.kv").write_bytes(good[:length])
        assert_miss(folder)
    folder = fast_folder / "junk"
    folder.mkdir(mode=0o700)
    (folder / "slab-0000000000000000.kv").write_bytes(good + b"junk")
    assert_miss(folder)


def test_swapped_names(fast_folder: Path) -> None:
    store = open_store(fast_folder, 8 * CAPACITY)
    put(store, *range(10))
    store.close()
    first, second = slab_files(fast_folder)[:2]
    aside = fast_folder / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    store = open_store(fast_folder, 8 * CAPACITY)
    there = found(store, range(10))
    assert 0 < len(there) < 10
    assert store.statistics().failures["slab"] == 2
    assert len(list(fast_folder.glob("*.bad"))) == 2


def test_a_slot_copied_to_another_place_is_not_found(fast_folder: Path) -> None:
    store = open_store(fast_folder, 16 * CAPACITY)
    put(store, 1, 2)
    shape = store._worker._slabs[0].shape
    store.close()
    path = slab_files(fast_folder)[0]
    content = bytearray(path.read_bytes())
    for at, size in ((shape.header_at, HEADER_BYTES), (shape.slot_at, PAGE)):
        content[at(1) : at(1) + size] = content[at(0) : at(0) + size]
    path.write_bytes(content)
    store = open_store(fast_folder, 16 * CAPACITY)
    assert found(store, [1, 2]) == [1]


class Trap:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


def _zip(marker: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Trap(marker)))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["pickle", "zip", "link", "fifo", "folder", "long payload", "many slots"])
def test_what_is_no_slab(fast_folder: Path, kind: str) -> None:
    marker, outside, folder = fast_folder / "marker", fast_folder / "outside", fast_folder / "kv"
    good = stored(folder)
    [path] = slab_files(folder)
    outside.write_bytes(good)
    path.unlink()
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Trap(marker)))
    elif kind == "zip":
        path.write_bytes(_zip(marker))
    elif kind == "link":
        path.symlink_to(outside)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "x").touch()
    elif kind == "long payload":
        path.write_bytes(good[: BLOCK + 136] + (2**63 - 1).to_bytes(8, "little") + good[BLOCK + 144 :])
    else:
        path.write_bytes(good[:12] + (2**32 - 1).to_bytes(4, "little") + good[16:])
    if kind == "folder":
        store = open_store(folder, CAPACITY)
        assert get(store, 1) is False
        assert store.statistics().quarantined == 1
    else:
        assert_miss(folder)
    assert not marker.exists()
    assert outside.read_bytes() == good


def test_other_files_are_left_alone(fast_folder: Path) -> None:
    (fast_folder / "notes.txt").write_text("mine")
    (fast_folder / "slab-12.kv").write_text("mine")
    store = open_store(fast_folder)
    put(store, 1)
    store.close()
    assert (fast_folder / "notes.txt").read_text() == "mine"
    assert (fast_folder / "slab-12.kv").read_text() == "mine"


@pytest.mark.parametrize("umask", [0, 0o077, 0o277])
def test_nobody_else_may_read(fast_folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = open_store(fast_folder / "kv")
        put(store, 1)
    finally:
        os.umask(before)
    assert (fast_folder / "kv").stat().st_mode & 0o777 == 0o700 & ~umask
    assert {path.stat().st_mode & 0o777 for path in (fast_folder / "kv").iterdir()} == {0o600}


def test_a_folder_that_others_can_use_is_refused(fast_folder: Path) -> None:
    folder = fast_folder / "kv"
    folder.mkdir()
    for mode in (0o777, 0o755, 0o701):
        folder.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 700"):
            open_store(folder)
        open_store(folder, allow_shared=True).close()
    link = fast_folder / "link"
    folder.chmod(0o700)
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="no link"):
        open_store(link)
    open_store(link, allow_shared=True).close()
    open_store(folder).close()


def test_a_folder_of_another_user_is_refused(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(fast_folder).close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="another user"):
        open_store(fast_folder)


def test_a_lock_that_is_a_fifo_does_not_hang(fast_folder: Path) -> None:
    os.mkfifo(fast_folder / "lock")
    open_store(fast_folder).close()


def test_a_folder_that_can_not_be_made_is_said(fast_folder: Path) -> None:
    with pytest.raises(ConfigError, match="can't be made"):
        open_store(fast_folder / "no" / "such" / "parent")
    (fast_folder / "file").touch()
    with pytest.raises(ConfigError, match="can't be opened"):
        open_store(fast_folder / "file")


def test_the_documented_offsets_are_those_of_the_code() -> None:
    text = (Path(__file__).parents[3] / "docs" / "disk-format.md").read_text(encoding="utf-8")
    tables = text.split("### ")
    for title, record in (("Superblock", SUPERBLOCK), ("Header", HEADER)):
        [table] = [part for part in tables if part.startswith(title)]
        rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("| ")]
        documented = {name: (int(offset), int(size)) for offset, size, name in rows if name != "name"}
        fields = record.fields or {}
        assert documented == {name: (place[1], place[0].itemsize) for name, place in fields.items()}
