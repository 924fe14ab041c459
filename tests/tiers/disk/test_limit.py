"""O-20, O-14: the limit of the folder holds, whatever is in it; what other settings stored stays while it can."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvpager.checksum import checksum
from kvpager.tiers.disk.files import SystemFiles
from kvpager.tiers.disk.format import SUPERBLOCK
from tests.tiers.disk.faulty_files import FullDisk
from tests.tiers.disk.pages import FakeClock, disk_bytes, found, get, open_store, put, slab_files

MIB = 1 << 20


class Watched(SystemFiles):
    """Notes the largest sum of file sizes there ever was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.most = 0

    def fallocate(self, fd: int, size: int) -> None:
        super().fallocate(fd, size)
        self.most = max(self.most, disk_bytes(self.folder))


def test_sixty_four_pages_of_a_mebibyte(fast_folder: Path) -> None:
    """The case's figures, with a thirty-second of its bytes."""
    page, limit = MIB // 32, 64 * MIB // 32
    files = Watched(fast_folder)
    store = open_store(fast_folder, limit, page, files=files)
    for number in range(0, 1000, 4):
        put(store, *range(number, number + 4))
    assert files.most <= limit
    assert found(store, range(1000))[0] >= 1000 - 64
    store.close()
    store = open_store(fast_folder, limit, page, files=files)  # (b)
    for number in range(1000, 1100):
        put(store, number)
    assert files.most <= limit
    store.close()
    store = open_store(fast_folder, limit // 2, page, files=files)  # (c)
    assert disk_bytes(fast_folder) <= limit // 2
    there = found(store, range(1100))
    assert there[-1] == 1099
    assert len(there) >= 24


def test_a_full_disk_gives_shorter_slabs_and_growth_is_tried_again(fast_folder: Path) -> None:
    files, clock = FullDisk(300_000), FakeClock()
    store = open_store(fast_folder, 8 * MIB, files=files, clock=clock)  # slabs of 1 MiB are planned
    for number in range(60):
        put(store, number)
    assert 200_000 < disk_bytes(fast_folder) <= 300_000
    there = found(store, range(60))
    assert there == list(range(60 - len(there), 60))  # it goes on with the slots it has
    assert store.state.startswith("full: ENOSPC")
    files.size = 2 * MIB
    for _ in range(8):
        clock.now += 100
        store.tick()
        for number in range(100, 140):
            put(store, number)
    assert disk_bytes(fast_folder) > MIB
    store.close()
    store = open_store(fast_folder, 8 * MIB)
    assert found(store, range(100, 140)) == list(range(100, 140))


def test_a_disk_without_any_room_takes_no_pages_until_there_is_some(fast_folder: Path) -> None:
    files, clock = FullDisk(1000), FakeClock()
    store = open_store(fast_folder, 8 * MIB, files=files, clock=clock)
    assert "ENOSPC" in str(put(store, 1)[0])
    assert put(store, 2) == []
    assert store.statistics().refused == 1
    assert store.usage().blocks == 0
    assert store.state.startswith("full: ENOSPC")
    files.size = 8 * MIB
    clock.now += 1.5
    store.tick()
    assert put(store, 3) == [None]
    assert store.state == "ok"
    assert put(store, *range(10, 400))[-1] is None
    assert found(store, [1, 2, 3]) == [3]


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "mount"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "kvpager-test", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_real_full_file_system(small_mount: Path) -> None:
    clock = FakeClock()
    hog = small_mount / "hog"
    hog.write_bytes(bytes(MIB))
    store = open_store(small_mount, 32 * MIB, clock=clock)
    for number in range(200):
        put(store, number)
    there = found(store, range(200))
    assert len(there) > 50
    assert there[-1] == 199
    assert store.state.startswith("full: ENOSPC")
    hog.unlink()
    for _ in range(8):
        clock.now += 100
        for number in range(300, 500):
            put(store, number)
    assert len(found(store, range(300, 500))) > 150
    store.close()


def test_other_settings_find_their_pages_again(fast_folder: Path) -> None:
    folder = fast_folder / "kv"
    store = open_store(folder)
    put(store, *range(10))
    store.close()
    other = open_store(folder, page_bytes=PAGE_OF_ANOTHER_MODEL)
    assert found(other, range(10)) == []
    put(other, *range(20, 25))
    other.check()
    assert disk_bytes(folder) <= MIB
    other.close()
    store = open_store(folder)
    assert found(store, range(30)) == list(range(10))
    store.close()
    assert found(open_store(folder, page_bytes=PAGE_OF_ANOTHER_MODEL), range(30)) == list(range(20, 25))


PAGE_OF_ANOTHER_MODEL = 12288


def test_slabs_of_other_settings_go_first_when_room_is_needed(fast_folder: Path) -> None:
    store = open_store(fast_folder)
    put(store, *range(100))
    store.close()
    files = Watched(fast_folder)
    other = open_store(fast_folder, page_bytes=PAGE_OF_ANOTHER_MODEL, files=files)
    for number in range(200, 300):
        put(other, number)
    assert files.most <= MIB
    assert len(found(other, range(200, 300))) > 60
    other.check()
    other.close()
    store = open_store(fast_folder)
    assert found(store, range(100)) == []


def test_another_identity_in_the_same_slab(fast_folder: Path) -> None:
    store = open_store(fast_folder)
    put(store, 1, 2)
    store.close()
    other = open_store(fast_folder, identity=bytes(32))
    assert found(other, [1, 2]) == []
    assert put(other, 2, 3) == [None, None]
    assert found(other, [1, 2, 3]) == [2, 3]
    other.check()
    other.close()
    store = open_store(fast_folder)
    assert found(store, [1, 2, 3]) == [1, 2]
    store.close()
    other = open_store(fast_folder, identity=bytes(32))
    assert found(other, [1, 2, 3]) == [2, 3]


def test_a_slab_of_a_later_version_is_left_alone(fast_folder: Path) -> None:
    store = open_store(fast_folder)
    put(store, 1)
    store.close()
    [path] = slab_files(fast_folder)
    old = path.read_bytes()
    content = np.frombuffer(bytearray(old[:4096]), np.uint8)
    content.view(SUPERBLOCK)["version"] = 2
    content.view(SUPERBLOCK)["crc"] = checksum(content[:-8])
    path.write_bytes(content.tobytes() + old[4096:])
    store = open_store(fast_folder)
    assert get(store, 1) is False
    assert store.statistics().quarantined == 0
    put(store, 2)
    store.check()
    store.close()
    assert path.read_bytes() == content.tobytes() + old[4096:]
