"""Seals and packings on disk: pages come back, changed ones do not, and other settings do not meet."""

from pathlib import Path

import numpy as np
import pytest

from kvpager.tiers.disk.format import BLOCK, HEADER, HEADER_BYTES, finish
from kvpager.tiers.sealing import AesGcm, Key, KeyedMac, Packing, Seal, Zstd
from tests.tiers.disk.faulty_files import TracedFiles
from tests.tiers.disk.pages import PAGE, content, found, get, key, open_store, put, slab_files

KEY = Key(bytes(range(32)))


def make(name: str) -> tuple[Seal | None, Packing | None]:
    pytest.importorskip("cryptography" if "aes" in name else "zstandard" if "zstd" in name else "hashlib")
    seal = AesGcm(KEY) if "aes" in name else KeyedMac(KEY) if "mac" in name else None
    return seal, Zstd() if "zstd" in name else None


@pytest.mark.parametrize("name", ["mac", "aes", "zstd", "zstd+mac", "zstd+aes"])
@pytest.mark.parametrize("page_bytes", [5000, 8192])
def test_pages_come_back(fast_folder: Path, name: str, page_bytes: int) -> None:
    seal, packing = make(name)
    store = open_store(fast_folder, page_bytes=page_bytes, seal=seal, packing=packing)
    assert put(store, *range(5)) == [None] * 5
    assert found(store, range(5)) == list(range(5))
    store.close()
    store = open_store(fast_folder, page_bytes=page_bytes, seal=seal, packing=packing)
    assert found(store, range(5)) == list(range(5))
    store.close()
    stored = slab_files(fast_folder)[0].read_bytes()
    assert (content(1, page_bytes).tobytes()[:64] in stored) == (name == "mac")
    assert found(open_store(fast_folder, page_bytes=page_bytes), range(5)) == []


@pytest.mark.parametrize("name", ["mac", "aes", "zstd+aes"])
def test_what_was_changed_on_purpose_is_wrong(fast_folder: Path, name: str) -> None:
    seal, packing = make(name)
    store = open_store(fast_folder, seal=seal, packing=packing)
    put(store, 1, 2)
    shape = store._worker._slabs[0].shape
    store.close()
    path = slab_files(fast_folder)[0]
    file = bytearray(path.read_bytes())
    header = np.frombuffer(file[BLOCK : BLOCK + HEADER_BYTES], np.uint8).copy().view(HEADER)
    header["key"] = np.frombuffer(key(7), np.uint8)  # page 1 is to pass for page 7; the checksum is made to fit
    finish(header)
    file[BLOCK : BLOCK + HEADER_BYTES] = header.tobytes()
    path.write_bytes(file)
    store = open_store(fast_folder, seal=seal, packing=packing)
    assert store.contains(key(7))
    assert "seal" in str(get(store, 7))
    assert store.statistics().quarantined == 1
    assert found(store, [1, 2]) == [2]
    assert shape.slot_bytes == PAGE


def test_pages_that_do_not_get_smaller_are_stored_as_they_are(fast_folder: Path) -> None:
    class Useless:
        name = "useless"

        def pack(self, page: np.ndarray) -> bytes | None:
            return None

        def unpack(self, payload: object, into: np.ndarray) -> None:
            raise AssertionError

    store = open_store(fast_folder, packing=Useless())
    put(store, 1)
    assert found(store, [1]) == [1]


def test_no_more_of_a_packed_page_is_written_than_there_is(fast_folder: Path) -> None:
    class Half:
        name = "half"

        def pack(self, page: np.ndarray) -> bytes:
            return page[: PAGE // 2].tobytes()

        def unpack(self, payload: object, into: np.ndarray) -> None:
            assert isinstance(payload, np.ndarray)
            into[: PAGE // 2] = payload
            into[PAGE // 2 :] = payload  # content() repeats itself

    files = TracedFiles()
    store = open_store(fast_folder, packing=Half(), files=files)
    put(store, 1, 2)
    assert sorted(len(done.content) for done in files.trace if done.call == "write") == [
        2 * HEADER_BYTES,
        BLOCK,  # the superblock
        PAGE // 2,
        PAGE // 2,
    ]
    assert found(store, [1, 2]) == [1, 2]
