"""CRC-64/NVME: the published values, a reference made bit by bit, and the same value however it is computed."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType

import numpy as np
import pytest

POLYNOMIAL = 0xAD93D23594C93659  # as published, not reflected
ONES = 2**64 - 1

# The 64b CRC test cases of the NVM Express NVM Command Set Specification, and the check value of the CRC catalogue.
PUBLISHED = {
    "check": (b"123456789", 0xAE8B14860A799888),
    "zeros": (bytes(4096), 0x6482D367EB22B64E),
    "ones": (b"\xff" * 4096, 0xC0DDBA7302ECA3AC),
    "rising": (bytes(range(256)) * 16, 0x3E729F5F6750449C),
    "falling": (bytes(range(255, -1, -1)) * 16, 0x9A2DF64B8E9E517E),
}
SIZES = [0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 319, 320, 321, 383, 640, 1000, 4096, 5003]

Threads = Callable[[int], AbstractContextManager[None]]


def reference(data: bytes) -> int:
    """Long division of polynomials over GF(2), one bit at a time, most significant first."""
    remainder = ONES
    for byte in data:
        remainder ^= int(f"{byte:08b}"[::-1], 2) << 56
        for _ in range(8):
            remainder = (remainder << 1) ^ (POLYNOMIAL if remainder >> 63 else 0)
            remainder &= ONES
    return int(f"{remainder ^ ONES:064b}"[::-1], 2)


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def checksum(native: ModuleType, data: np.ndarray) -> int:
    return native.checksum(data.ctypes.data, data.nbytes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values(native: ModuleType, isa: str, name: str) -> None:
    data, expected = PUBLISHED[name]
    assert reference(data) == expected
    assert checksum(native, np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("size", SIZES)
def test_every_length_and_alignment(native: ModuleType, isa: str, size: int) -> None:
    data = random_bytes(size + 33, size)
    for shift in (0, 1, 16, 33):
        expected = reference(data[shift : shift + size].tobytes())
        assert native.checksum(data.ctypes.data + shift, size) == expected


@pytest.mark.parametrize("size", [*SIZES, 300_007])
def test_copying_gives_the_same_value_and_writes_nothing_else(native: ModuleType, isa: str, size: int) -> None:
    data = random_bytes(size + 1, size)
    expected = native.checksum(data.ctypes.data, size)
    for shift in (0, 1, 31, 64):
        target = np.full(size + 256, 0xA5, np.uint8)
        assert native.copy_checksum(target.ctypes.data + shift, data.ctypes.data, size) == expected
        assert np.array_equal(target[shift : shift + size], data[:size])
        assert (target[:shift] == 0xA5).all()
        assert (target[shift + size :] == 0xA5).all()


def test_threads_and_pieces_do_not_change_the_value(native: ModuleType, isa: str, threads: Threads) -> None:
    data = random_bytes(5_000_011)
    found = set()
    for count in (1, 2, 3):
        with threads(count):
            target = np.zeros_like(data)
            found |= {checksum(native, data), native.copy_checksum(target.ctypes.data, data.ctypes.data, data.nbytes)}
            assert np.array_equal(target, data)
    for count in (1, 2, 3):
        target = np.zeros_like(data)
        found.add(native.checksum(data.ctypes.data, data.nbytes, threads=count))
        found.add(native.copy_checksum(target.ctypes.data, data.ctypes.data, data.nbytes, threads=count))
        assert np.array_equal(target, data)
    assert len(found) == 1


@pytest.mark.parametrize("size", [32_767, 32_768, 33_088, 65_791, 98_304, 131_007, 3_000_017])
def test_long_ranges_agree_with_the_tables(native: ModuleType, isa: str, size: int) -> None:
    """The other sets fold, in two streams from 32 KiB on; the portable one has tables alone, which the tests above
    hold against the reference."""
    data = random_bytes(size, size)
    native.set_isa("portable")  # tables only
    expected = checksum(native, data)
    native.set_isa(isa)
    target = np.zeros_like(data)
    assert checksum(native, data) == native.copy_checksum(target.ctypes.data, data.ctypes.data, size) == expected
    assert np.array_equal(target, data)


def test_any_burst_of_64_bits_shows(native: ModuleType) -> None:
    data = random_bytes(4096)
    before = checksum(native, data)
    generator = np.random.default_rng(1)
    for _ in range(300):
        at = int(generator.integers(0, 4096 - 8))
        burst = generator.integers(0, 256, 8, np.uint8)
        burst[0] |= 1
        data[at : at + 8] ^= burst
        assert checksum(native, data) != before
        data[at : at + 8] ^= burst
    assert checksum(native, data) == before


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda native, at: native.checksum(0, 1), "address"),
        (lambda native, at: native.checksum(at, -1), "bytes"),
        (lambda native, at: native.copy_checksum(0, at, 1), "target"),
        (lambda native, at: native.copy_checksum(at, 0, 1), "source"),
        (lambda native, at: native.copy_checksum(at, at + 4, 8), "overlap"),
        (lambda native, at: native.copy_checksum(at, at + 8, -8), "bytes"),
        (lambda native, at: native.checksum(at, 8, -1), "threads"),
        (lambda native, at: native.copy_checksum(at, at + 8, 8, -1), "threads"),
        (lambda native, at: native.checksums([at, 0], 1), "addresses"),
        (lambda native, at: native.checksums([at], -1), "bytes"),
        (lambda native, at: native.copy_checksums([at, 0], [at + 8, at], 1), "targets"),
        (lambda native, at: native.copy_checksums([at], [0], 1), "sources"),
        (lambda native, at: native.copy_checksums([at, at], [at + 8, at + 4], 8), "overlap"),
        (lambda native, at: native.copy_checksums([at], [], 8), "equally long"),
    ],
    ids=[
        "no-address",
        "negative",
        "no-target",
        "no-source",
        "overlap",
        "negative-copy",
        "threads",
        "copy-threads",
        "no-address-of-many",
        "negative-many",
        "no-target-of-many",
        "no-source-of-many",
        "overlap-of-many",
        "other-count",
    ],
)
def test_wrong_ranges_are_refused(native: ModuleType, call: Callable[[ModuleType, int], int], names: str) -> None:
    memory = random_bytes(64)
    with pytest.raises(ValueError, match=names):
        call(native, memory.ctypes.data)
    assert native.copy_checksum(memory.ctypes.data, memory.ctypes.data + 8, 8) == reference(memory[8:16].tobytes())
